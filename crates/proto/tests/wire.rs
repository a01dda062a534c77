//! The wire settings between a real server and a real client.

use std::net::SocketAddr;
use std::pin::Pin;

use paceline_proto::v1::step_to_worker::Message;
use paceline_proto::v1::workers_client::WorkersClient;
use paceline_proto::v1::workers_server::{Workers, WorkersServer};
use paceline_proto::v1::{ControlFromWorker, ControlToWorker, StepEnvelope, StepFromWorker, StepToWorker};
use paceline_proto::wire;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status, Streaming};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Sends one plan whose rank part has this many bytes.
struct OnePlan(usize);

#[tonic::async_trait]
impl Workers for OnePlan {
    type ControlStream = Answers<ControlToWorker>;
    type StepsStream = Answers<StepToWorker>;

    async fn control(
        &self,
        _request: Request<Streaming<ControlFromWorker>>,
    ) -> Result<Response<Self::ControlStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::empty())))
    }

    async fn steps(&self, _request: Request<Streaming<StepFromWorker>>) -> Result<Response<Self::StepsStream>, Status> {
        let envelope = StepEnvelope { rank_part: vec![7; self.0].into(), ..StepEnvelope::default() };
        let message = StepToWorker { message: Some(Message::Step(envelope)) };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(message)))))
    }
}

/// A server on a free port of the loopback.
async fn serve(plan_bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address");
    let service = WorkersServer::new(OnePlan(plan_bytes))
        .max_decoding_message_size(wire::MESSAGE_LIMIT)
        .max_encoding_message_size(wire::MESSAGE_LIMIT);
    let server = wire::server().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    address
}

/// What a client with the wire settings receives: the size of the rank part.
async fn receive(plan_bytes: usize) -> Result<usize, Status> {
    let address = serve(plan_bytes).await;
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = wire::client(endpoint).connect().await.expect("the server listens");
    let mut client = WorkersClient::new(channel)
        .max_decoding_message_size(wire::MESSAGE_LIMIT)
        .max_encoding_message_size(wire::MESSAGE_LIMIT);
    let mut plans = client.steps(tokio_stream::pending()).await?.into_inner();
    let plan = plans.next().await.expect("one plan")?;
    let Some(Message::Step(envelope)) = plan.message else { panic!("a plan was sent") };
    Ok(envelope.rank_part.len())
}

#[tokio::test]
async fn plans_far_over_the_default_limit_arrive() {
    let size = wire::MESSAGE_LIMIT - 1024;
    assert_eq!(receive(size).await.expect("within the limit"), size);
}

#[tokio::test]
async fn plans_over_the_limit_are_an_error_not_a_hang() {
    let status = receive(wire::MESSAGE_LIMIT + 1).await.expect_err("over the limit");
    assert_eq!(status.code(), Code::OutOfRange);
}

#[test]
fn times_are_in_order() {
    assert!(wire::HEARTBEAT_INTERVAL * 2 < wire::HEARTBEAT_TIMEOUT);
    assert!(wire::HEARTBEAT_TIMEOUT < wire::DAEMON_LOSS_EXIT);
}

#[test]
fn the_descriptor_set_holds_both_services() {
    let bytes = paceline_proto::FILE_DESCRIPTOR_SET;
    for name in ["worker.proto", "generation.proto"] {
        let found = bytes.windows(name.len()).any(|window| window == name.as_bytes());
        assert!(found, "{name} is missing");
    }
}
