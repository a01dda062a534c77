//! `paceline explain`: asks a running daemon why a step had its shape, and prints its words.
//!
//! The request is HTTP/1.0 over a plain socket: one GET, answered whole and without chunks.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};

use crate::Failure;

/// The longest wait for a connection, and for any part of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `paceline explain`.
#[derive(Debug, clap::Args)]
pub(crate) struct Explain {
    /// Number of the step, or "last"
    #[arg(value_name = "STEP", value_parser = step)]
    step: String,
    /// Address of the daemon
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    url: String,
    /// Lockstep group whose step it is
    #[arg(long)]
    group: Option<u32>,
    /// Rank whose part of the step to tell
    #[arg(long)]
    dp_rank: Option<u32>,
    /// Key of the daemon, if it asks for one
    #[arg(long, env = "PACELINE_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
}

fn step(text: &str) -> Result<String, String> {
    if text == "last" || text.parse::<u64>().is_ok() {
        return Ok(text.to_owned());
    }
    Err("neither a step's number nor \"last\"".to_owned())
}

/// Where a daemon listens.
#[derive(Debug, PartialEq, Eq)]
struct Address<'a> {
    /// HOST:PORT.
    authority: &'a str,
    /// What goes before the route, without a slash at its end.
    prefix: &'a str,
}

/// What a daemon says.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: u16,
    body: Vec<u8>,
}

/// Prints why the step had its shape.
///
/// # Errors
/// When the URL or key cannot be used, no daemon answers, or it does not have the step: its own words.
pub(crate) fn run(explain: &Explain) -> Result<(), Failure> {
    let address = address(&explain.url)?;
    let head = head(&address, &path(explain), explain.api_key.as_deref())?;
    let answer = get(&address, &head).with_context(|| format!("no answer from {}", explain.url))?;
    let words = words(&answer)?;
    // A closed stdout is the reader's choice.
    let _ = writeln!(std::io::stdout(), "{words}");
    Ok(())
}

fn address(url: &str) -> Result<Address<'_>, Failure> {
    let refused = |what: &str| Failure::Usage(format!("--url {url}: {what}"));
    let rest = url.strip_prefix("http://").ok_or_else(|| refused("it must begin with http://"))?;
    if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['?', '#', '@']) {
        return Err(refused("only a host, a port and a path may follow http://"));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.is_empty() {
        return Err(refused("it names no host"));
    }
    Ok(Address { authority, prefix: path.trim_end_matches('/') })
}

fn path(explain: &Explain) -> String {
    let given = [("group", explain.group), ("dp_rank", explain.dp_rank)];
    let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    let query: Vec<String> = given.collect();
    let sign = if query.is_empty() { "" } else { "?" };
    format!("/explain/{}{sign}{}", explain.step, query.join("&"))
}

fn head(address: &Address<'_>, path: &str, api_key: Option<&str>) -> Result<String, Failure> {
    let Address { authority, prefix } = address;
    let mut head = format!("GET {prefix}{path} HTTP/1.0\r\nHost: {authority}\r\nAccept: application/json\r\n");
    if let Some(key) = api_key {
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::Usage("--api-key: only printable ASCII characters without spaces".to_owned()));
        }
        head.push_str(&format!("Authorization: Bearer {key}\r\n"));
    }
    head.push_str("\r\n");
    Ok(head)
}

fn get(address: &Address<'_>, head: &str) -> anyhow::Result<Answer> {
    let mut socket = connect(address.authority)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.write_all(head.as_bytes())?;
    let mut bytes = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    parse(&bytes)
}

fn connect(authority: &str) -> anyhow::Result<TcpStream> {
    let port_is_given = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    let target = if port_is_given { authority.to_owned() } else { format!("{authority}:80") };
    let mut failure = anyhow!("{target} has no address");
    for address in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}

fn parse(bytes: &[u8]) -> anyhow::Result<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").context("what came is no HTTP answer")?;
    let head = String::from_utf8_lossy(&bytes[..end]);
    let mut lines = head.split("\r\n");
    let status = lines.next().filter(|line| line.starts_with("HTTP/1.")).and_then(|line| line.split(' ').nth(1));
    let status = status.and_then(|status| status.parse().ok()).context("what came is no HTTP answer")?;
    let body = &bytes[end + 4..];
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if name.eq_ignore_ascii_case("content-length") && value.trim() != body.len().to_string() {
            bail!("the answer was cut: {} bytes of {}", body.len(), value.trim());
        }
    }
    Ok(Answer { status, body: body.to_vec() })
}

/// The words of a success; the message of an error as an error.
fn words(answer: &Answer) -> anyhow::Result<String> {
    let body: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    let found = body.as_ref().and_then(|body| match answer.status {
        200 => body["words"].as_str(),
        _ => body["error"]["message"].as_str(),
    });
    match (answer.status, found) {
        (200, Some(words)) => Ok(words.to_owned()),
        (_, Some(message)) => Err(anyhow!("{message}")),
        (status, None) => Err(anyhow!("status {status} and no explanation: is this a paceline daemon?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain() -> Explain {
        Explain { step: "7".to_owned(), url: String::new(), group: None, dp_rank: None, api_key: None }
    }

    #[test]
    fn urls_are_taken_apart() {
        let of = |authority, prefix| Address { authority, prefix };
        assert_eq!(address("http://127.0.0.1:8000").expect("valid"), of("127.0.0.1:8000", ""));
        assert_eq!(address("http://[::1]:8000/").expect("valid"), of("[::1]:8000", ""));
        assert_eq!(address("http://host/behind/a/").expect("valid"), of("host", "/behind/a"));
        for url in ["https://host", "host:80", "http://", "http:///path", "http://a b", "http://a\r\nb", "http://a?b"] {
            let failure = address(url).expect_err("refused");
            assert!(matches!(&failure, Failure::Usage(line) if line.contains("--url")), "{failure}");
        }
    }

    #[test]
    fn the_request_asks_for_what_was_said() {
        assert_eq!(path(&explain()), "/explain/7");
        assert_eq!(path(&Explain { dp_rank: Some(3), ..explain() }), "/explain/7?dp_rank=3");
        assert_eq!(path(&Explain { group: Some(1), dp_rank: Some(3), ..explain() }), "/explain/7?group=1&dp_rank=3");
        let address = Address { authority: "host:1", prefix: "/a" };
        let head = head(&address, "/explain/7", Some("secret")).expect("valid");
        assert!(head.starts_with("GET /a/explain/7 HTTP/1.0\r\nHost: host:1\r\n"), "{head}");
        assert!(head.ends_with("Authorization: Bearer secret\r\n\r\n"), "{head}");
        assert!(super::head(&address, "/", Some("a\r\nb")).is_err());
    }

    #[test]
    fn steps_are_numbers_or_the_last_one() {
        assert!(step("last").is_ok() && step("12").is_ok());
        assert!(step("first").is_err() && step("-1").is_err() && step("1.5").is_err() && step("").is_err());
    }

    #[test]
    fn an_answer_is_words_or_the_daemons_own_error() {
        let told = |bytes: &[u8]| parse(bytes).and_then(|answer| words(&answer)).map_err(|error| error.to_string());
        assert_eq!(told(b"HTTP/1.0 200 OK\r\nContent-Length: 13\r\n\r\n{\"words\":\"w\"}"), Ok("w".to_owned()));
        assert_eq!(told(b"HTTP/1.1 404 Not Found\r\n\r\n{\"error\":{\"message\":\"m\"}}"), Err("m".to_owned()));
        for bad in [&b"220 smtp"[..], b"HTTP/1.0 200 OK\r\n\r\n{}", b"HTTP/1.0 502 Bad\r\n\r\n<html>"] {
            let message = told(bad).expect_err("no explanation");
            assert!(message.contains("no HTTP answer") || message.contains("no explanation"), "{message}");
        }
        let cut = told(b"HTTP/1.0 200 OK\r\ncontent-length: 20\r\n\r\n{\"words\"").expect_err("cut");
        assert!(cut.contains("8 bytes of 20"), "{cut}");
    }
}
