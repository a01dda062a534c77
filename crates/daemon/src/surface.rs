//! What the flags say of clients: limits, browsers, encryption, how chats are read.

use std::str::FromStr;
use std::time::Duration;

use paceline_server::{ChatOptions, ConnectionLimits, CorsOptions, RequestLimits, Tls, Traces};
use paceline_text::{ReasoningFormat, ToolFormat};
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::flags::Flags;
use crate::settings::{usage, within};

/// How much longer than its request the connection of a slow reader lives.
const CONNECTION_GRACE: Duration = Duration::from_secs(3);

/// Names of a flag: as JSON, which is how `vllm serve` takes them, or with commas between. In a configuration file they
/// are an array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl FromStr for Names {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim_start().starts_with('[') {
            return serde_json::from_str(text).map(Self).map_err(|error| format!("no JSON list of texts: {error}"));
        }
        Ok(Self(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()))
    }
}

impl Flags {
    /// Whether what is said of clients can be kept.
    ///
    /// # Errors
    /// [`Failure::Usage`] with one line that names the flag.
    pub(crate) fn check_surface(&self) -> Result<(), Failure> {
        if let Some(name) = self.tool_call_parser.as_deref().filter(|name| !ToolFormat::NAMES.contains(name)) {
            return Err(usage(format!("--tool-call-parser: {name} is none of {}", ToolFormat::NAMES.join(", "))));
        }
        if let Some(name) = self.reasoning_parser.as_deref().filter(|name| !ReasoningFormat::NAMES.contains(name)) {
            return Err(usage(format!("--reasoning-parser: {name} is none of {}", ReasoningFormat::NAMES.join(", "))));
        }
        if let Some(bytes) = self.max_header_bytes {
            within("--max-header-bytes", bytes as u64, 8_192, 1 << 30)?;
        }
        if let Some(count) = self.max_header_count {
            within("--max-header-count", count as u64, 1, 65_536)?;
        }
        if let Some(seconds) = self.slow_reader_timeout {
            within("--slow-reader-timeout", seconds, 0, 1 << 30)?;
        }
        if self.ssl_certfile.is_some() != self.ssl_keyfile.is_some() {
            return Err(usage("--ssl-certfile and --ssl-keyfile go together: only one of them is given"));
        }
        Ok(())
    }

    /// What connections are encrypted with, read before any weight is loaded.
    ///
    /// # Errors
    /// [`Failure::Usage`] with the file that cannot be used.
    pub(crate) fn tls(&self) -> Result<Option<Tls>, Failure> {
        let (Some(certificates), Some(key)) = (&self.ssl_certfile, &self.ssl_keyfile) else { return Ok(None) };
        Tls::load(certificates, key).map(Some).map_err(|error| usage(error.to_string()))
    }

    /// Where spans of calls go. They are of the service that the environment names as OpenTelemetry does.
    ///
    /// # Errors
    /// [`Failure::Usage`] for an address that is none.
    pub(crate) fn traces(&self) -> Result<Option<Traces>, Failure> {
        let Some(endpoint) = &self.otlp_traces_endpoint else { return Ok(None) };
        let service_name = std::env::var("OTEL_SERVICE_NAME").unwrap_or_else(|_| "paceline".to_owned());
        let started = Traces::start(endpoint, &service_name);
        started.map(Some).map_err(|error| usage(format!("--otlp-traces-endpoint: {error}")))
    }

    /// How answers to chats are read. Names that a file gives and nobody knows mean nothing here: flags are checked.
    pub(crate) fn chat_options(&self) -> ChatOptions {
        ChatOptions {
            tool_format: self.tool_call_parser.as_deref().and_then(ToolFormat::from_name),
            reasoning: self.reasoning_parser.as_deref().and_then(ReasoningFormat::from_name),
        }
    }

    /// What clients may ask for.
    pub(crate) fn request_limits(&self) -> RequestLimits {
        let default = RequestLimits::default();
        RequestLimits {
            body_bytes: self.max_body_bytes.unwrap_or(default.body_bytes),
            stop_strings: self.max_stop_strings.unwrap_or(default.stop_strings),
            prompt_tokens: self.max_prompt_tokens,
            open_calls: self.max_open_calls.unwrap_or(default.open_calls),
        }
    }

    /// What one connection may do.
    pub(crate) fn connection_limits(&self) -> ConnectionLimits {
        let default = ConnectionLimits::default();
        ConnectionLimits {
            header_bytes: self.max_header_bytes.unwrap_or(default.header_bytes),
            header_count: self.max_header_count.unwrap_or(default.header_count),
            unread: match self.slow_reader_timeout {
                Some(0) => None,
                Some(seconds) => Some(Duration::from_secs(seconds) + CONNECTION_GRACE),
                None => default.unread.map(|unread| unread + CONNECTION_GRACE),
            },
        }
    }

    /// How long tokens may wait for a reader: less than bytes may, so that a request is ended for its true reason.
    pub(crate) fn unread_tokens(&self) -> Option<Duration> {
        let unread = self.connection_limits().unread?;
        Some(unread.saturating_sub(CONNECTION_GRACE))
    }

    /// Which pages may call from a browser.
    pub(crate) fn cors_options(&self) -> CorsOptions {
        let names = |names: &Option<Names>| names.clone().unwrap_or_default().0;
        CorsOptions {
            origins: names(&self.allowed_origins),
            methods: names(&self.allowed_methods),
            headers: names(&self.allowed_headers),
            credentials: self.allow_credentials == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_json_or_have_commas() {
        let names = |text: &str| text.parse::<Names>().map(|names| names.0);
        let two = Ok(vec!["http://a.example".to_owned(), "https://b.example".to_owned()]);
        assert_eq!(names("http://a.example, https://b.example"), two);
        assert_eq!(names("[\"http://a.example\", \"https://b.example\"]"), two);
        assert_eq!(names("[\"*\"]"), Ok(vec!["*".to_owned()]));
        assert_eq!(names(""), Ok(Vec::new()));
        assert!(names("[1]").is_err_and(|message| message.starts_with("no JSON list")));
    }

    #[test]
    fn a_certificate_without_its_key_is_refused_and_so_are_headers_of_no_size() {
        let line = |flags: Flags| flags.check_surface().expect_err("not possible").to_string();
        let alone = line(Flags { ssl_certfile: Some("c.pem".into()), ..Flags::default() });
        assert!(alone.contains("--ssl-keyfile"), "{alone}");
        let small = line(Flags { max_header_bytes: Some(100), ..Flags::default() });
        assert!(small.contains("--max-header-bytes is 100, must be between 8192"), "{small}");
    }
}
