//! The log as one JSON object a line, for what gathers logs.

use std::collections::BTreeSet;
use std::fmt::{self, Debug};

use paceline_fleet::Place;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// A line that is no event, such as those for scripts.
pub(crate) fn line(level: &str, target: &str, message: &str) -> String {
    let mut line = Line::new(level, target);
    line.put("message", message);
    line.name_ranks();
    line.finish()
}

/// A line that a worker printed.
pub(crate) fn worker_line(place: Place, message: &str) -> String {
    let mut line = Line::new("INFO", "paceline_worker");
    line.put("message", message);
    line.put("dp_rank", place.dp_rank.get());
    line.put("tp_rank", place.tp_rank);
    line.finish()
}

/// Writes `timestamp`, `level`, `target`, `message`, the ranks that these name, and what else an event has by its own names.
pub(crate) struct JsonLines;

impl<S: Subscriber + for<'span> LookupSpan<'span>, N: for<'writer> FormatFields<'writer> + 'static> FormatEvent<S, N>
    for JsonLines
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut line = Line::new(metadata.level().as_str(), metadata.target());
        event.record(&mut line);
        line.name_ranks();
        writeln!(writer, "{}", line.finish())
    }
}

/// The fields of one line.
struct Line(Map<String, Value>);

impl Line {
    fn new(level: &str, target: &str) -> Self {
        let mut timestamp = String::new();
        // Nothing that is written to a text can fail.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        let mut line = Self(Map::new());
        line.put("timestamp", timestamp);
        line.put("level", level);
        line.put("target", target);
        line
    }

    /// Ranks that the text names as people read them, `dp3` or `dp3 tp1`, become numbers of their own.
    fn name_ranks(&mut self) {
        let told: Vec<&str> = ["message", "error"].iter().filter_map(|field| self.0.get(*field)?.as_str()).collect();
        let words: Vec<&str> = told.iter().flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric())).collect();
        let named = |kind: &str| -> BTreeSet<u32> {
            words.iter().filter_map(|word| word.strip_prefix(kind)?.parse().ok()).collect()
        };
        let (dp_ranks, tp_ranks) = (Vec::from_iter(named("dp")), Vec::from_iter(named("tp")));
        match (dp_ranks.as_slice(), tp_ranks.as_slice()) {
            ([], _) => {}
            ([dp_rank], [tp_rank]) => {
                self.put("dp_rank", *dp_rank);
                self.put("tp_rank", *tp_rank);
            }
            ([dp_rank], _) => self.put("dp_rank", *dp_rank),
            _ => self.put("dp_ranks", dp_ranks),
        }
    }

    fn finish(self) -> String {
        Value::Object(self.0).to_string()
    }

    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    use paceline_plan::DpRank;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_name_their_ranks_as_numbers() {
        let read = |line: String| serde_json::from_str::<Value>(&line).expect("an object");
        let named = |message: &str| read(line("INFO", "paceline", message));
        assert_eq!(named("dp3: worker joined (process 7)")["dp_rank"], 3);
        let both = named("dp1 tp2: worker loaded, 9 KV blocks");
        assert_eq!((&both["dp_rank"], &both["tp_rank"]), (&Value::from(1), &Value::from(2)));
        let group = named("group 0 (dp0, dp1) is in service, epoch 1");
        assert_eq!((&group["dp_ranks"], group.get("dp_rank")), (&Value::from(vec![0, 1]), None));
        assert_eq!(named("the prefix cache is reset").as_object().map(Map::len), Some(4));
        let worker = read(worker_line(Place::new(DpRank::new(1), 0), "loaded in 2 s"));
        assert_eq!((&worker["dp_rank"], &worker["message"]), (&Value::from(1), &Value::from("loaded in 2 s")));
    }

    #[test]
    fn every_line_is_an_object_with_the_events_own_fields() {
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt().event_format(JsonLines).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(request_id = "a\"b", tokens = 7, "told \"so\"\nin two lines");
            tracing::warn!("again");
        });
        let text = String::from_utf8(written.0.lock().expect("not poisoned").clone()).expect("text");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!((&lines[0]["level"], &lines[0]["tokens"]), (&Value::from("INFO"), &Value::from(7)));
        assert_eq!(lines[0]["message"], "told \"so\"\nin two lines");
        assert_eq!((&lines[0]["request_id"], &lines[1]["message"]), (&Value::from("a\"b"), &Value::from("again")));
        assert!(lines[1]["timestamp"].as_str().is_some_and(|time| time.ends_with('Z')));
    }
}
