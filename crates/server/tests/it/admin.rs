//! What operators ask over HTTP and gRPC, and who may.

use crate::common::{Setup, TestServer};
use paceline_proto::v1::admin_client::AdminClient;
use paceline_proto::v1::{
    AbortRequest, DrainRequest, FleetState, Gate, GetStatusRequest, PauseMode, PauseRequest, RankLoad,
    ResetPrefixCacheRequest, ResumeRequest, SubscribeCacheEventsRequest,
};
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Request};

async fn operated() -> TestServer {
    TestServer::saying_with(Setup { admin: true, ..Setup::default() }, "red").await
}

async fn client(server: &TestServer) -> AdminClient<Channel> {
    AdminClient::connect(format!("http://{}", server.grpc)).await.expect("the server listens")
}

fn gates(state: &FleetState) -> Vec<Gate> {
    state.ranks.iter().map(RankLoad::gate).collect()
}

#[tokio::test]
async fn vllms_routes_pause_and_resume() {
    let server = operated().await;
    let is_paused = async || server.get("/is_paused").await.json()["is_paused"].clone();
    assert_eq!(is_paused().await, false);
    for path in ["/pause", "/pause?mode=wait&clear_cache=false", "/pause?mode=keep&dp_rank=1"] {
        let reply = server.post(path, &json!({})).await;
        assert_eq!((reply.status, reply.json()), (200, json!({"status": "paused"})), "{path}");
    }
    assert_eq!(is_paused().await, true);
    assert_eq!(server.get("/ready").await.json()["ranks"][0]["gate"], "finishing");
    assert_eq!(server.post("/resume?dp_rank=0", &json!({})).await.status, 200);
    assert_eq!(is_paused().await, false, "one rank goes on");
    assert_eq!(server.post("/resume", &json!({})).await.json(), json!({"status": "resumed"}));
    assert_eq!(server.post("/reset_prefix_cache", &json!({})).await.status, 200);
    let all = server.post("/abort_requests", &json!({})).await;
    assert_eq!(all.json(), json!({"status": "aborted", "aborted": 0}));
    for (path, field) in [
        ("/pause?mode=stop", "mode"),
        ("/pause?dp_rank=2", "dp_rank"),
        ("/pause?dp_rank=x", "dp_rank"),
        ("/pause?clear_cache=maybe", "clear_cache"),
        ("/resume?mode=keep", "mode"),
    ] {
        assert_eq!(server.post(path, &json!({})).await.refusal(), (400, field.to_owned()), "{path}");
    }
    let ids = json!({"request_ids": [1]});
    assert_eq!(server.post("/abort_requests", &ids).await.refusal(), (400, "request_ids".to_owned()));
    let paths = server.get("/openapi.json").await.json()["paths"].clone();
    assert!(paths["/pause"]["post"].is_object(), "{paths}");
    server.stop().await;
}

#[tokio::test]
async fn the_same_over_grpc_with_state_and_load_of_each_rank() {
    let server = operated().await;
    let mut client = client(&server).await;
    let state = client.get_status(GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!((state.ready, gates(&state)), (true, vec![Gate::Open; 2]));
    assert_eq!(state.ranks[1].state, "ready");
    let pause = PauseRequest { dp_rank: Some(1), mode: PauseMode::Wait.into(), clear_cache: true };
    let state = client.pause(pause).await.unwrap().into_inner();
    assert_eq!(gates(&state), [Gate::Open, Gate::Finishing]);
    let state = client.pause(PauseRequest::default()).await.unwrap().into_inner();
    assert_eq!(gates(&state), [Gate::Paused; 2], "to keep is the default");
    let state = client.resume(ResumeRequest { dp_rank: None }).await.unwrap().into_inner();
    assert_eq!(gates(&state), [Gate::Open; 2]);
    let state = client.drain(DrainRequest::default()).await.unwrap().into_inner();
    assert!(state.draining);
    client.reset_prefix_cache(ResetPrefixCacheRequest {}).await.unwrap();
    assert_eq!(
        client.abort(AbortRequest { all: true, ..AbortRequest::default() }).await.unwrap().into_inner().aborted,
        0
    );
    let both = AbortRequest { all: true, request_ids: vec!["x".to_owned()] };
    for request in [both, AbortRequest::default()] {
        assert_eq!(client.abort(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let nowhere = DrainRequest { dp_rank: Some(7), wait: false };
    assert_eq!(client.drain(nowhere).await.unwrap_err().code(), Code::InvalidArgument);
    let mode = PauseRequest { mode: 77, ..PauseRequest::default() };
    assert_eq!(client.pause(mode).await.unwrap_err().code(), Code::InvalidArgument);
    server.stop().await;
}

#[tokio::test]
async fn only_a_server_that_was_started_for_it_can_be_operated() {
    let server = TestServer::saying("red").await;
    for path in ["/pause", "/resume", "/reset_prefix_cache", "/abort_requests"] {
        assert_eq!(server.post(path, &json!({})).await.status, 403, "{path}");
    }
    assert_eq!(server.get("/is_paused").await.status, 403);
    assert!(server.get("/openapi.json").await.json()["paths"]["/pause"].is_null());
    let mut client = client(&server).await;
    assert!(client.get_status(GetStatusRequest {}).await.is_ok(), "to look is allowed");
    let codes = [
        client.pause(PauseRequest::default()).await.unwrap_err().code(),
        client.resume(ResumeRequest::default()).await.unwrap_err().code(),
        client.drain(DrainRequest::default()).await.unwrap_err().code(),
        client.abort(AbortRequest { all: true, ..AbortRequest::default() }).await.unwrap_err().code(),
        client.reset_prefix_cache(ResetPrefixCacheRequest {}).await.unwrap_err().code(),
        client.subscribe_cache_events(SubscribeCacheEventsRequest::default()).await.unwrap_err().code(),
    ];
    assert_eq!(codes, [Code::PermissionDenied; 6]);
    server.stop().await;
}

#[tokio::test]
async fn operators_need_the_key_too() {
    let setup = Setup { admin: true, api_key: Some("secret"), ..Setup::default() };
    let server = TestServer::saying_with(setup, "red").await;
    assert_eq!(server.post("/pause", &json!({})).await.status, 401);
    let mut client = client(&server).await;
    assert_eq!(client.get_status(GetStatusRequest {}).await.unwrap_err().code(), Code::Unauthenticated);
    let mut request = Request::new(GetStatusRequest {});
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    assert!(client.get_status(request).await.is_ok());
    server.stop().await;
}
