//! Every error a client can get, once, with its code on each protocol.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use paceline_engine::{FailureKind, SubmitError};
use serde_json::{Value, json};

use crate::limits::{RETRY_AFTER_QUEUE_FULL_S, RETRY_AFTER_UNAVAILABLE_S};

/// Whose fault it is, which decides the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The caller's mistake: 400, INVALID_ARGUMENT.
    Invalid,
    /// No key or a wrong one: 401, UNAUTHENTICATED.
    Unauthorized,
    /// The server was not started for it: 403, PERMISSION_DENIED.
    Forbidden,
    /// No such model or route: 404, NOT_FOUND.
    NotFound,
    /// The route exists, the method does not: 405.
    MethodNotAllowed,
    /// The body is over its limit: 413.
    TooLarge,
    /// The client did not read its answer: 408, DEADLINE_EXCEEDED.
    SlowReader,
    /// Too much waits: 429, RESOURCE_EXHAUSTED.
    QueueFull,
    /// No worker for it now: 503, UNAVAILABLE.
    Unavailable,
    /// Our fault: 500, INTERNAL.
    Internal,
}

/// An error as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
}

impl ApiError {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// The caller's mistake in `param`.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind: Kind::Invalid, message: message.into(), param: Some(param.into()) }
    }

    /// A model that is not served.
    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("the model `{asked}` does not exist; this server has `{served}`");
        Self { kind: Kind::NotFound, message, param: Some("model".to_owned()) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Unauthorized => StatusCode::UNAUTHORIZED,
            Kind::Forbidden => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::SlowReader => StatusCode::REQUEST_TIMEOUT,
            Kind::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// OpenAI's error object.
    pub(crate) fn body(&self) -> Value {
        let type_name = match self.kind {
            Kind::Invalid | Kind::TooLarge => "BadRequestError",
            Kind::Unauthorized => "AuthenticationError",
            Kind::Forbidden => "PermissionDeniedError",
            Kind::NotFound => "NotFoundError",
            Kind::MethodNotAllowed => "MethodNotAllowedError",
            Kind::SlowReader => "RequestTimeoutError",
            Kind::QueueFull => "RateLimitError",
            Kind::Unavailable => "ServiceUnavailableError",
            Kind::Internal => "InternalServerError",
        };
        json!({"error": {
            "message": self.message,
            "type": type_name,
            "param": self.param,
            "code": self.status().as_u16(),
        }})
    }

    fn retry_after_s(&self) -> Option<u64> {
        match self.kind {
            Kind::QueueFull => Some(RETRY_AFTER_QUEUE_FULL_S),
            Kind::Unavailable => Some(RETRY_AFTER_UNAVAILABLE_S),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status(), Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_s() {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.kind == Kind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<ApiError> for tonic::Status {
    fn from(error: ApiError) -> Self {
        let code = match error.kind {
            Kind::Invalid | Kind::MethodNotAllowed | Kind::TooLarge => tonic::Code::InvalidArgument,
            Kind::Unauthorized => tonic::Code::Unauthenticated,
            Kind::Forbidden => tonic::Code::PermissionDenied,
            Kind::NotFound => tonic::Code::NotFound,
            Kind::SlowReader => tonic::Code::DeadlineExceeded,
            Kind::QueueFull => tonic::Code::ResourceExhausted,
            Kind::Unavailable => tonic::Code::Unavailable,
            Kind::Internal => tonic::Code::Internal,
        };
        let message = match &error.param {
            Some(param) => format!("{param}: {}", error.message),
            None => error.message.clone(),
        };
        let mut status = Self::new(code, message);
        if let Some(seconds) = error.retry_after_s() {
            status.metadata_mut().insert("retry-after", seconds.into());
        }
        status
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Invalid { field, message } => Self::invalid(field, message),
            SubmitError::QueueFull { .. } => Self::new(Kind::QueueFull, error.to_string()),
            SubmitError::Unavailable { message } => Self::new(Kind::Unavailable, message),
        }
    }
}

impl ApiError {
    /// A request that failed after it was accepted.
    pub(crate) fn failed(kind: FailureKind, message: String) -> Self {
        match kind {
            FailureKind::WorkerLost => Self::new(Kind::Unavailable, message),
            FailureKind::Internal => Self::new(Kind::Internal, message),
            FailureKind::SlowReader => Self::new(Kind::SlowReader, message),
            FailureKind::Stuck => Self::new(Kind::Invalid, message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e20_each_kind_has_matching_codes_on_both_protocols() {
        let pairs = [
            (Kind::Invalid, 400, tonic::Code::InvalidArgument),
            (Kind::QueueFull, 429, tonic::Code::ResourceExhausted),
            (Kind::Unavailable, 503, tonic::Code::Unavailable),
            (Kind::Internal, 500, tonic::Code::Internal),
            (Kind::NotFound, 404, tonic::Code::NotFound),
            (Kind::Unauthorized, 401, tonic::Code::Unauthenticated),
            (Kind::SlowReader, 408, tonic::Code::DeadlineExceeded),
        ];
        for (kind, http, grpc) in pairs {
            let error = ApiError::new(kind, "why");
            assert_eq!(error.status().as_u16(), http);
            assert_eq!(tonic::Status::from(error).code(), grpc);
        }
    }
}
