//! Which pages may call from a browser: none, unless configured.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::CorsOptions;
use crate::app::App;

const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, OPTIONS");

/// How long a browser may keep the answer to its question, in seconds.
const MAX_AGE_S: HeaderValue = HeaderValue::from_static("600");

/// Answers a browser's question before a call, and tells it that a call's answer may be read.
pub(crate) async fn cors(State(app): State<App>, request: Request, next: Next) -> Response {
    let options = &app.options.cors;
    let Some(origin) = allowed(&options.origins, request.headers()) else { return next.run(request).await };
    let mut response = if request.method() == Method::OPTIONS {
        let mut response = StatusCode::NO_CONTENT.into_response();
        answer(options, request.headers(), response.headers_mut());
        response
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::VARY, HeaderValue::from_name(HeaderName::from_static("origin")));
    if options.credentials {
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    }
    response
}

/// What may be sent: what is configured, or what is asked for where all is allowed.
fn answer(options: &CorsOptions, asked: &HeaderMap, headers: &mut HeaderMap) {
    let methods = listed(&options.methods).unwrap_or(METHODS);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE_S);
    let asked = || asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    if let Some(allowed) = listed(&options.headers).or_else(asked) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, allowed);
    }
}

/// A list of names as a header has it; nothing where it stands for all.
fn listed(names: &[String]) -> Option<HeaderValue> {
    let is_all = names.is_empty() || names.iter().any(|name| name == "*");
    if is_all { None } else { HeaderValue::from_str(&names.join(", ")).ok() }
}

fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let listed = |known: &String| known == "*" || known.as_bytes() == origin.as_bytes();
    origins.iter().any(listed).then(|| origin.clone())
}
