//! The part of OpenTelemetry's wire format that spans need, version 1 of its trace protocol, and its one call.

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_spans: Vec<ResourceSpans>,
}

impl ExportRequest {
    /// Spans of this server, which is called `service_name`.
    pub(super) fn new(service_name: &str, spans: Vec<Span>) -> Self {
        let name = KeyValue::new("service.name", Value::Text(service_name.to_owned()));
        let scope = Scope { name: "paceline".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(Resource { attributes: vec![name] });
        Self { resource_spans: vec![ResourceSpans { resource, scope_spans }] }
    }
}

/// `ExportTraceServiceResponse`: whether some spans were refused does not matter to us.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ExportResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Scope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(super) trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    /// 1 is internal, 2 is a server's.
    #[prost(int32, tag = "6")]
    pub(super) kind: i32,
    #[prost(fixed64, tag = "7")]
    pub(super) start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    pub(super) end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    pub(super) status: Option<SpanStatus>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SpanStatus {
    #[prost(string, tag = "2")]
    pub(super) message: String,
    /// 0 says nothing, 2 is an error.
    #[prost(int32, tag = "3")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3, 4")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Integer(i64),
    #[prost(double, tag = "4")]
    Number(f64),
}

impl KeyValue {
    pub(super) fn new(key: &str, value: Value) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}

/// Hands spans to a collector.
///
/// # Errors
/// The collector's answer, or that it cannot be reached.
pub(super) async fn export(channel: &Channel, request: ExportRequest) -> Result<(), Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec: ProstCodec<ExportRequest, ExportResponse> = ProstCodec::default();
    client.unary(Request::new(request), PathAndQuery::from_static(EXPORT), codec).await.map(drop)
}
