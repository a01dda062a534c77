//! Which pages may call from a browser: none, unless configured.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::app::App;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");

/// How long a browser may keep the answer to its question, in seconds.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// Answers a browser's question before a call, and tells it that a call's answer may be read.
pub(crate) async fn cors(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(origin) = allowed(&app.options.cors_origins, request.headers()) else { return next.run(request).await };
    let asked = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let mut response = if request.method() == Method::OPTIONS {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
        if let Some(asked) = asked {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked);
        }
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_name(HeaderName::from_static("origin")));
    response
}

fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let listed = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
    origins.iter().any(listed).then(|| origin.clone())
}
