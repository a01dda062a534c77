//! What happens to every request before its handler and to every response after it: the key and the request id.

use std::time::Instant;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::LIVENESS;
use crate::api_error::{ApiError, Kind};
use crate::app::App;
use crate::generate::Call;
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::traces::TraceContext;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: &str = "traceparent";
const DP_RANK: &str = "x-data-parallel-rank";

/// The id of a request: the client's own, or one drawn for it.
#[derive(Debug, Clone)]
pub(crate) struct RequestId {
    text: String,
    /// Whether the client gave it.
    given: bool,
}

/// Checks the key, gives the request an id and sends the id back.
pub(crate) async fn front(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = match request_id(request.headers()) {
        Ok(id) => id,
        Err(error) => return error.into_response(),
    };
    let began = Instant::now();
    let echoed = HeaderValue::from_str(&id.text).expect("checked to be printable ASCII");
    let (uri, method) = (request.uri().clone(), request.method().clone());
    let mut response = if request.uri().path() == LIVENESS || key_matches(&app, request.headers()) {
        request.extensions_mut().insert(id);
        next.run(request).await
    } else {
        let message = "this server needs its API key: Authorization: Bearer KEY";
        ApiError::new(Kind::Unauthorized, message).into_response()
    };
    response.headers_mut().insert(REQUEST_ID, echoed);
    app.metrics.http.answered(uri.path(), method.as_str(), response.status().as_u16(), began.elapsed());
    response
}

fn request_id(headers: &HeaderMap) -> Result<RequestId, ApiError> {
    match headers.get(REQUEST_ID).map(HeaderValue::as_bytes) {
        None | Some([]) => Ok(RequestId { text: format!("{:016x}", rand::random::<u64>()), given: false }),
        Some(bytes) => Ok(RequestId { text: checked_id(bytes, "X-Request-Id")?, given: true }),
    }
}

/// An id ends up in headers and logs: printable ASCII, of limited length.
pub(crate) fn checked_id(bytes: &[u8], param: &str) -> Result<String, ApiError> {
    let printable = bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    match std::str::from_utf8(bytes) {
        Ok(id) if printable && bytes.len() <= REQUEST_ID_BYTES_MAX => Ok(id.to_owned()),
        _ => {
            let message = format!("{param} must be at most {REQUEST_ID_BYTES_MAX} printable ASCII characters");
            Err(ApiError::invalid(param, message))
        }
    }
}

fn key_matches(app: &App, headers: &HeaderMap) -> bool {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    accepts_key(app, given)
}

/// Whether this key opens the server. The time taken tells nothing about how much of a wrong key was right.
pub(crate) fn accepts_key(app: &App, given: Option<&[u8]>) -> bool {
    let Some(key) = app.options.api_key.as_deref().map(str::as_bytes) else { return true };
    let Some(given) = given else { return false };
    let difference = key.iter().zip(given).fold(0, |difference, (key, given)| difference | (key ^ given));
    key.len() == given.len() && std::hint::black_box(difference) == 0
}

/// Reads a whole body within its limit, whatever its content type says.
pub(crate) async fn read_body(app: &App, body: Body) -> Result<Bytes, ApiError> {
    let bytes_max = app.options.limits.body_bytes;
    to_bytes(body, bytes_max).await.map_err(|error| {
        let mut source: Option<&dyn std::error::Error> = Some(&error);
        while let Some(inner) = source {
            if inner.to_string().contains("length limit exceeded") {
                return ApiError::new(Kind::TooLarge, format!("the body is larger than {bytes_max} bytes"));
            }
            source = inner.source();
        }
        ApiError::new(Kind::Invalid, format!("the body cannot be read: {error}"))
    })
}

/// The rank a client asked for by header.
pub(crate) fn dp_rank(value: Option<&[u8]>) -> Result<Option<u32>, ApiError> {
    let Some(value) = value else { return Ok(None) };
    let text = String::from_utf8_lossy(value);
    text.trim().parse().map(Some).map_err(|_| {
        let message = format!("X-data-parallel-rank must be a rank's number, got \"{text}\"");
        ApiError::invalid("X-data-parallel-rank", message)
    })
}

/// Fills what the request line and headers decide: the call's id, with the prefix of its kind, and its rank. A model
/// that is not served is refused.
pub(crate) fn complete_call(
    app: &App,
    call: &mut Call,
    prefix: &str,
    (id, headers): (RequestId, &HeaderMap),
    (model, body_id): (Option<&str>, Option<String>),
) -> Result<(), ApiError> {
    let served = &app.options.model_name;
    if let Some(model) = model.filter(|model| model != served) {
        return Err(ApiError::unknown_model(model, served));
    }
    let id = match body_id.filter(|_| !id.given) {
        Some(body_id) => checked_id(body_id.as_bytes(), "request_id")?,
        None => id.text,
    };
    call.id = format!("{prefix}-{id}");
    call.dp_rank = dp_rank(headers.get(DP_RANK).map(HeaderValue::as_bytes))?;
    call.trace = headers.get(TRACE_PARENT).and_then(|value| TraceContext::read(value.as_bytes()));
    Ok(())
}
