//! The gRPC services over real sockets.

use crate::common::{Setup, TestServer, output};
use paceline_engine::{FailureKind, FleetStatus, SubmitError};
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::generate_response::StopReason;
use paceline_proto::v1::generation_client::GenerationClient;
use paceline_proto::v1::model_client::ModelClient;
use paceline_proto::v1::{
    ChatMessage, ChatPrompt, DetokenizeRequest, FinishReason, GenerateRequest, GenerateResponse, GetModelInfoRequest,
    Sampling, Stopping, TokenIds, TokenizeRequest,
};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

async fn channel(server: &TestServer) -> Channel {
    let address = format!("http://{}", server.grpc);
    Channel::from_shared(address).expect("an address").connect().await.expect("the server listens")
}

fn text(prompt: &str) -> GenerateRequest {
    GenerateRequest { prompt: Some(Prompt::Text(prompt.to_owned())), ..GenerateRequest::default() }
}

async fn all(server: &TestServer, request: GenerateRequest) -> Result<Vec<GenerateResponse>, Status> {
    let mut stream = GenerationClient::new(channel(server).await).generate(request).await?.into_inner();
    let mut responses = Vec::new();
    while let Some(response) = stream.message().await? {
        responses.push(response);
    }
    Ok(responses)
}

#[tokio::test]
async fn a_call_streams_text_tokens_and_usage() {
    let server = TestServer::saying("red END blue").await;
    let request = GenerateRequest {
        n: Some(2),
        logprobs: Some(1),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        stopping: Some(Stopping { stop: vec!["END".to_owned()], ..Stopping::default() }),
        ..text("x")
    };
    let responses = all(&server, request).await.unwrap();
    for index in 0..2 {
        let own: Vec<&GenerateResponse> = responses.iter().filter(|response| response.index == index).collect();
        assert_eq!(own.iter().map(|response| response.text.as_str()).collect::<String>(), "red ");
        assert!(own.iter().all(|response| response.logprobs.len() == response.token_ids.len()));
        let last = own.last().unwrap();
        assert_eq!(last.finish_reason, Some(FinishReason::Stop.into()));
        assert_eq!(last.stop_reason, Some(StopReason::StopText("END".to_owned())));
    }
    let tokens: usize = responses.iter().map(|response| response.token_ids.len()).sum();
    let (last, before) = responses.split_last().unwrap();
    assert_eq!(last.usage.unwrap().completion_tokens as usize, tokens);
    assert!(before.iter().all(|response| response.usage.is_none()));
    server.stop().await;
}

#[tokio::test]
async fn chats_and_token_ids_are_prompts_too() {
    let server = TestServer::saying("red").await;
    let chat = ChatPrompt {
        messages: vec![ChatMessage { role: "user".to_owned(), content: "colour?".to_owned() }],
        add_generation_prompt: None,
    };
    let request = GenerateRequest { prompt: Some(Prompt::Chat(chat)), ..GenerateRequest::default() };
    let chat = all(&server, request).await.unwrap();
    assert!(chat.last().unwrap().usage.unwrap().prompt_tokens > 20);
    let ids = Prompt::TokenIds(TokenIds { ids: vec![300, 301, 302] });
    let request = GenerateRequest { prompt: Some(ids), ..GenerateRequest::default() };
    assert_eq!(all(&server, request).await.unwrap().last().unwrap().usage.unwrap().prompt_tokens, 3);
    server.stop().await;
}

#[tokio::test]
async fn e20_bad_input_is_invalid_argument() {
    let server = TestServer::saying("red").await;
    let ids = |ids: Vec<u32>| GenerateRequest { prompt: Some(Prompt::TokenIds(TokenIds { ids })), ..text("") };
    let sampling = |sampling: Sampling| GenerateRequest { sampling: Some(sampling), ..text("x") };
    let stopping = |stopping: Stopping| GenerateRequest { stopping: Some(stopping), ..text("x") };
    for (request, field) in [
        (GenerateRequest::default(), "prompt"),
        (text(""), "prompt"),
        (ids(vec![5, 4_000_000_000]), "prompt"),
        (ids(vec![300; 128]), "prompt"),
        (GenerateRequest { n: Some(0), ..text("x") }, "n"),
        (GenerateRequest { logprobs: Some(1_000), ..text("x") }, "logprobs"),
        (sampling(Sampling { temperature: Some(-1.0), ..Sampling::default() }), "temperature"),
        (sampling(Sampling { temperature: Some(f32::NAN), ..Sampling::default() }), "temperature"),
        (sampling(Sampling { top_p: Some(0.0), ..Sampling::default() }), "top_p"),
        (stopping(Stopping { max_tokens: Some(0), ..Stopping::default() }), "max_tokens"),
        (stopping(Stopping { max_tokens: Some(4_000), ..Stopping::default() }), "max_tokens"),
        (stopping(Stopping { stop: vec![String::new()], ..Stopping::default() }), "stop"),
        (stopping(Stopping { stop_token_ids: vec![4_000], ..Stopping::default() }), "stop_token_ids"),
    ] {
        let status = all(&server, request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{field}");
        assert!(status.message().starts_with(&format!("{field}: ")), "{}", status.message());
    }
    let request = GenerateRequest { model: Some("nope".to_owned()), ..text("x") };
    assert_eq!(all(&server, request).await.unwrap_err().code(), Code::NotFound);
    for rank in ["7", "x"] {
        let mut request = Request::new(text("x"));
        request.metadata_mut().insert("x-data-parallel-rank", rank.parse().unwrap());
        let status = GenerationClient::new(channel(&server).await).generate(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    assert!(all(&server, text("x")).await.is_ok());
    server.stop().await;
}

#[tokio::test]
async fn e20_load_and_loss_have_their_codes() {
    for (error, code) in [
        (SubmitError::QueueFull { waiting: 4, limit: 4, unit: "requests" }, Code::ResourceExhausted),
        (SubmitError::Unavailable { message: "draining".to_owned() }, Code::Unavailable),
    ] {
        let server = TestServer::scripted(Setup::default(), move |_| Err(error.clone())).await;
        assert_eq!(all(&server, text("x")).await.unwrap_err().code(), code);
        server.stop().await;
    }
    for (kind, code) in [(FailureKind::Internal, Code::Internal), (FailureKind::WorkerLost, Code::Unavailable)] {
        let server = TestServer::scripted(Setup::default(), move |submitted| {
            submitted.sink.fail(kind, "it broke");
            Ok(())
        })
        .await;
        let status = GenerationClient::new(channel(&server).await).generate(text("x")).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, "it broke"));
        server.stop().await;
    }
}

#[tokio::test]
async fn e20_after_partial_output_the_tokens_stay_and_the_status_follows() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let mut client = GenerationClient::new(channel(&server).await);
    let call = tokio::spawn(async move { client.generate(text("x")).await.map(tonic::Response::into_inner) });
    let submitted = requests.recv().await.unwrap();
    submitted.sink.tokens(vec![output(300, None)]);
    let mut stream = call.await.unwrap().unwrap();
    assert_eq!(stream.message().await.unwrap().unwrap().token_ids, [300]);
    submitted.sink.fail(FailureKind::Internal, "it broke");
    assert_eq!(stream.message().await.unwrap_err().code(), Code::Internal);
    server.stop().await;
}

#[tokio::test]
async fn e13_a_cancelled_call_drops_its_request() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    // While it waits for its first token, and after it.
    for started in [false, true] {
        let mut client = GenerationClient::new(channel(&server).await);
        let call = tokio::spawn(async move { client.generate(text("x")).await.map(tonic::Response::into_inner) });
        let submitted = requests.recv().await.unwrap();
        if started {
            submitted.sink.tokens(vec![output(300, None)]);
            drop(call.await.unwrap().unwrap());
        } else {
            call.abort();
        }
        submitted.sink.abandoned().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn health_follows_readiness_and_asks_for_no_key() {
    let server = TestServer::saying_with(Setup { api_key: Some("secret"), ..Setup::default() }, "red").await;
    let mut health = HealthClient::new(channel(&server).await);
    let mut check = async |service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        health.check(request).await.map(|response| response.into_inner().status())
    };
    assert_eq!(check("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("paceline.v1.Generation").await.unwrap(), ServingStatus::Serving);
    assert_eq!(check("other").await.unwrap_err().code(), Code::NotFound);
    let mut watch = HealthClient::new(channel(&server).await);
    let mut changes = watch.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.publisher.publish(FleetStatus::default());
    assert_eq!(check("").await.unwrap(), ServingStatus::NotServing);
    assert_eq!(changes.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(all(&server, text("x")).await.unwrap_err().code(), Code::Unauthenticated);
    let mut request = Request::new(text("x"));
    request.metadata_mut().insert("authorization", "Bearer secret".parse().unwrap());
    request.metadata_mut().insert("x-request-id", "mine".parse().unwrap());
    let answer = GenerationClient::new(channel(&server).await).generate(request).await.unwrap();
    assert_eq!(answer.metadata().get("x-request-id").unwrap(), "mine");
    server.stop().await;
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let server = TestServer::saying("red").await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel(&server).await);
    let requests = tokio_stream::iter([request]);
    let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
    let answer = answers.message().await.unwrap().unwrap().message_response.unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else { panic!("{answer:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(
        ["paceline.v1.Generation", "paceline.v1.Model", "paceline.v1.Admin", "grpc.health.v1.Health"]
            .iter()
            .all(|name| names.contains(name)),
        "{names:?}"
    );
    server.stop().await;
}

#[tokio::test]
async fn e02_continuous_usage_over_grpc_sums_all_choices_and_never_falls() {
    let server = TestServer::saying("red green blue").await;
    let request = GenerateRequest { n: Some(2), continuous_usage: Some(true), ..text("x") };
    let responses = all(&server, request).await.unwrap();
    let mut tokens = 0;
    for response in &responses {
        tokens += u32::try_from(response.token_ids.len()).unwrap();
        let usage = response.usage.expect("in every message");
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (1, tokens));
    }
}

#[tokio::test]
async fn c15_every_sampling_field_has_its_place_in_a_message() {
    let (server, mut requests) = TestServer::held(Setup::default()).await;
    let seen = tokio::spawn(async move {
        let submitted = requests.recv().await.unwrap();
        let sampling = submitted.request.sampling.clone();
        submitted.produce(&[300; 4]);
        sampling
    });
    let sampling = Sampling {
        presence_penalty: Some(0.5),
        frequency_penalty: Some(0.25),
        repetition_penalty: Some(1.25),
        logit_bias: [(7, 2.0), (5, -1.0)].into(),
        allowed_token_ids: Some(TokenIds { ids: vec![5, 7] }),
        bad_words: vec!["speak".to_owned()],
        ..Sampling::default()
    };
    let stopping = Stopping { min_tokens: Some(2), max_tokens: Some(4), ..Stopping::default() };
    let request = GenerateRequest {
        sampling: Some(sampling),
        stopping: Some(stopping),
        prompt: Some(Prompt::TokenIds(TokenIds { ids: (300..320).collect() })),
        prompt_logprobs: Some(1),
        truncate_prompt_tokens: Some(3),
        ..GenerateRequest::default()
    };
    let responses = all(&server, request).await.unwrap();
    let reported: Vec<u32> = responses[0].prompt_logprobs.iter().map(|entry| entry.token_id).collect();
    assert_eq!(reported, [318, 319]);
    let sampling = seen.await.unwrap();
    let adjust = sampling.adjust;
    assert_eq!((adjust.presence_penalty, adjust.frequency_penalty, adjust.repetition_penalty), (0.5, 0.25, 1.25));
    assert_eq!(adjust.logit_bias, [(5, -1.0), (7, 2.0)]);
    assert_eq!((adjust.allowed_token_ids, adjust.min_tokens), (Some(vec![5, 7]), 2));
    assert!(!adjust.bad_words.is_empty());
}

#[tokio::test]
async fn the_model_and_its_tokenizer_are_told() {
    let server = TestServer::saying("speak").await;
    let mut client = ModelClient::new(channel(&server).await);
    let info = client.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.model.as_str(), info.max_model_len, info.ranks.len()), ("tiny", 128, 2));
    let prompt = Some(paceline_proto::v1::tokenize_request::Prompt::Text("First, speak.".to_owned()));
    let request = TokenizeRequest { prompt, add_special_tokens: Some(false) };
    let ids = client.tokenize(request).await.unwrap().into_inner().token_ids;
    assert_eq!(ids, server.tokenizer.encode("First, speak.", false).unwrap());
    let text = client.detokenize(DetokenizeRequest { token_ids: ids }).await.unwrap().into_inner().text;
    assert_eq!(text, "First, speak.");
    let outside = client.detokenize(DetokenizeRequest { token_ids: vec![u32::MAX] }).await.unwrap_err();
    assert_eq!(outside.code(), Code::InvalidArgument);
}
