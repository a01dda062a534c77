//! Numbers of a load, as a table for people and as JSON under the names that vLLM's client gives them.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value, json};

use crate::Error;
use crate::bench::BenchArguments;
use crate::bench::load::Outcome;

/// Something that takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measure {
    Ttft,
    Tpot,
    Itl,
    Latency,
}

impl Measure {
    const ALL: [Self; 4] = [Self::Ttft, Self::Tpot, Self::Itl, Self::Latency];

    const fn key(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Itl => "itl",
            Self::Latency => "e2el",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Ttft => "time to first token",
            Self::Tpot => "time per output token after the first",
            Self::Itl => "inter-token latency",
            Self::Latency => "whole answer",
        }
    }

    /// Milliseconds of one request; several for gaps, none where the request has no such thing.
    fn of(self, outcome: &Outcome) -> Vec<f64> {
        let more = outcome.output_tokens.saturating_sub(1);
        match self {
            Self::Ttft => vec![outcome.ttft_s * 1e3],
            Self::Tpot if more > 0 => vec![(outcome.latency_s - outcome.ttft_s) * 1e3 / more as f64],
            Self::Tpot => Vec::new(),
            Self::Itl => outcome.gaps_s.iter().map(|gap_s| gap_s * 1e3).collect(),
            Self::Latency => vec![outcome.latency_s * 1e3],
        }
    }
}

/// What an answer must keep to, to be a good one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goal {
    measure: Measure,
    limit_ms: f64,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let usage = || format!("{text:?} is none of ttft:MS, tpot:MS, itl:MS, e2el:MS");
        let (name, limit) = text.split_once(':').ok_or_else(usage)?;
        let measure = Measure::ALL.into_iter().find(|measure| measure.key() == name).ok_or_else(usage)?;
        let limit_ms: f64 = limit.parse().map_err(|_| usage())?;
        if limit_ms > 0.0 { Ok(Self { measure, limit_ms }) } else { Err(usage()) }
    }
}

impl Goal {
    fn is_met(&self, outcome: &Outcome) -> bool {
        let values = self.measure.of(outcome);
        // For gaps the mean counts, as for vLLM's client; the others are one value.
        values.is_empty() || values.iter().sum::<f64>() / values.len() as f64 <= self.limit_ms
    }
}

/// What came of a load.
#[derive(Clone, Debug)]
pub struct Summary {
    json: Map<String, Value>,
    rows: Vec<(&'static str, Vec<f64>)>,
    columns: Vec<String>,
}

impl Summary {
    pub(crate) fn new(arguments: &BenchArguments, outcomes: &[Result<Outcome, Error>], duration_s: f64) -> Self {
        let good: Vec<&Outcome> = outcomes.iter().flatten().collect();
        let mut errors: Vec<String> =
            outcomes.iter().filter_map(|outcome| outcome.as_ref().err().map(ToString::to_string)).collect();
        let failed = errors.len();
        errors.sort();
        errors.dedup();
        errors.truncate(10);
        let input: u64 = good.iter().map(|outcome| outcome.prompt_tokens).sum();
        let output: u64 = good.iter().map(|outcome| outcome.output_tokens).sum();
        let mut json = Map::new();
        let mut put = |key: String, value: Value| json.insert(key, value);
        put("duration".into(), json!(duration_s));
        put("completed".into(), json!(good.len()));
        put("failed".into(), json!(failed));
        put("errors".into(), json!(errors));
        put("total_input_tokens".into(), json!(input));
        put("total_output_tokens".into(), json!(output));
        put("request_throughput".into(), json!(good.len() as f64 / duration_s));
        put("output_throughput".into(), json!(output as f64 / duration_s));
        put("total_token_throughput".into(), json!((input + output) as f64 / duration_s));
        if !arguments.goodput.is_empty() {
            let met = |outcome: &&&Outcome| arguments.goodput.iter().all(|goal| goal.is_met(outcome));
            put("request_goodput".into(), json!(good.iter().filter(met).count() as f64 / duration_s));
        }
        let percentiles = &arguments.percentiles;
        let mut rows = Vec::new();
        for measure in Measure::ALL {
            let mut values: Vec<f64> = good.iter().flat_map(|outcome| measure.of(outcome)).collect();
            values.sort_by(f64::total_cmp);
            let mean = if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 };
            let mut row = vec![mean, percentile(&values, 50.0)];
            row.extend(percentiles.iter().map(|percent| percentile(&values, *percent)));
            let key = measure.key();
            put(format!("mean_{key}_ms"), json!(row[0]));
            put(format!("median_{key}_ms"), json!(row[1]));
            for (percent, value) in percentiles.iter().zip(&row[2..]) {
                put(format!("p{percent}_{key}_ms"), json!(value));
            }
            rows.push((measure.title(), row));
        }
        let mut columns = vec!["mean".to_owned(), "median".to_owned()];
        columns.extend(percentiles.iter().map(|percent| format!("p{percent}")));
        Self { json, rows, columns }
    }

    /// All numbers.
    pub const fn json(&self) -> &Map<String, Value> {
        &self.json
    }

    /// Requests that were answered whole.
    pub fn completed(&self) -> u64 {
        self.json["completed"].as_u64().unwrap_or(0)
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |key: &str| self.json.get(key).and_then(Value::as_f64);
        for (title, key, unit) in [
            ("requests answered", "completed", ""),
            ("requests failed", "failed", ""),
            ("duration", "duration", "s"),
            ("requests", "request_throughput", "/s"),
            ("good requests", "request_goodput", "/s"),
            ("output tokens", "output_throughput", "/s"),
            ("all tokens", "total_token_throughput", "/s"),
        ] {
            if let Some(value) = number(key) {
                let places = if unit.is_empty() { 0 } else { 2 };
                writeln!(formatter, "{title:<40} {value:>12.places$} {unit}")?;
            }
        }
        write!(formatter, "{:<40}", "milliseconds")?;
        for column in &self.columns {
            write!(formatter, " {column:>12}")?;
        }
        writeln!(formatter)?;
        for (title, row) in &self.rows {
            write!(formatter, "{title:<40}")?;
            for value in row {
                write!(formatter, " {value:>12.2}")?;
            }
            writeln!(formatter)?;
        }
        for error in self.json["errors"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            writeln!(formatter, "failed: {error}")?;
        }
        Ok(())
    }
}

/// The value that so many percent do not pass, between neighbours in proportion; 0 without values.
fn percentile(ordered: &[f64], percent: f64) -> f64 {
    let Some(last) = ordered.len().checked_sub(1) else { return 0.0 };
    let place = last as f64 * percent / 100.0;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    ordered[low] + (ordered[high] - ordered[low]) * place.fract()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_numpy() {
        let values = [1.0, 2.0, 4.0, 8.0];
        for (percent, expected) in [(0.0, 1.0), (50.0, 3.0), (90.0, 6.8), (99.0, 7.88), (100.0, 8.0)] {
            assert!((percentile(&values, percent) - expected).abs() < 1e-9, "{percent}");
        }
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn goals_are_read_and_held() {
        let goal: Goal = "tpot:10".parse().expect("valid");
        let outcome = |latency_s| Outcome { ttft_s: 1.0, latency_s, output_tokens: 11, ..Outcome::default() };
        assert!(goal.is_met(&outcome(1.09)) && !goal.is_met(&outcome(1.2)));
        for bad in ["tpot", "speed:1", "ttft:", "ttft:-1", "ttft:NaN"] {
            assert!(bad.parse::<Goal>().is_err(), "{bad}");
        }
    }
}
