//! `grpc.health.v1`: serving means that every rank is in service, as `/ready` has it.

use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use paceline_proto::v1::generation_server::SERVICE_NAME;
use tokio_stream::wrappers::IntervalStream;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::app::App;
use crate::limits::HEALTH_WATCH_INTERVAL;

/// Reads readiness when asked, so that it is never stale.
pub(super) struct HealthService {
    app: App,
}

impl HealthService {
    pub(super) fn new(app: App) -> Self {
        Self { app }
    }
}

fn serving(app: &App) -> ServingStatus {
    if app.handle.status().ready { ServingStatus::Serving } else { ServingStatus::NotServing }
}

fn answer(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

/// The empty name is the server as a whole.
fn is_known(service: &str) -> bool {
    service.is_empty() || service == SERVICE_NAME
}

#[tonic::async_trait]
impl Health for HealthService {
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if is_known(service) {
            return Ok(Response::new(answer(serving(&self.app))));
        }
        Err(Status::not_found(format!("there is no service {service}")))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let known = is_known(&request.get_ref().service);
        let app = self.app.clone();
        let mut last = None;
        let changes = IntervalStream::new(tokio::time::interval(HEALTH_WATCH_INTERVAL)).filter_map(move |_| {
            let status = if known { serving(&app) } else { ServingStatus::ServiceUnknown };
            let changed = last.replace(status) != Some(status);
            std::future::ready(changed.then(|| Ok(answer(status))))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
