//! The gRPC services: `paceline.v1.Generation`, `paceline.v1.Model`, `paceline.v1.Admin`, health and reflection.

mod admin;
mod generation;
mod health;
mod model;

use paceline_proto::FILE_DESCRIPTOR_SET;
use paceline_proto::v1::admin_server::AdminServer;
use paceline_proto::v1::generation_server::GenerationServer;
use paceline_proto::v1::model_server::ModelServer;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::server::Router;
use tonic::{Request, Status};
use tonic_health::pb::health_server::HealthServer;

use self::admin::AdminService;
use self::generation::GenerationService;
use self::health::HealthService;
use self::model::ModelService;
use crate::Error;
use crate::api_error::{ApiError, Kind};
use crate::app::App;
use crate::http::accepts_key;
use crate::limits::{PING_INTERVAL, PING_TIMEOUT};

/// All services over one shared state. Health asks for no key: probes have none.
pub(crate) fn router(app: App) -> Result<Router, Error> {
    let check_key = {
        let app = app.clone();
        move |request: Request<()>| key_checked(&app, request)
    };
    let generation = GenerationServer::new(GenerationService::new(app.clone()))
        .max_decoding_message_size(app.options.limits.body_bytes);
    let model =
        ModelServer::new(ModelService::new(app.clone())).max_decoding_message_size(app.options.limits.body_bytes);
    let admin =
        AdminServer::new(AdminService::new(app.clone())).max_decoding_message_size(app.options.limits.body_bytes);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let reflection_v1 = reflection().build_v1().map_err(Error::Reflection)?;
    // Older clients, grpcurl among them, ask for this version first.
    let reflection_v1alpha = reflection().build_v1alpha().map_err(Error::Reflection)?;
    Ok(tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .http2_max_header_list_size(u32::try_from(app.options.connections.header_bytes).unwrap_or(u32::MAX))
        .add_service(HealthServer::new(HealthService::new(app)))
        .add_service(InterceptedService::new(generation, check_key.clone()))
        .add_service(InterceptedService::new(admin, check_key.clone()))
        .add_service(InterceptedService::new(model, check_key.clone()))
        .add_service(InterceptedService::new(reflection_v1, check_key.clone()))
        .add_service(InterceptedService::new(reflection_v1alpha, check_key)))
}

fn key_checked(app: &App, request: Request<()>) -> Result<Request<()>, Status> {
    let given = request.metadata().get("authorization").and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    if accepts_key(app, given) {
        return Ok(request);
    }
    let message = "this server needs its API key as metadata: authorization: Bearer KEY";
    Err(ApiError::new(Kind::Unauthorized, message).into())
}
