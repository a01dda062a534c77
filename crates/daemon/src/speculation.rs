//! `--speculative-config`: who proposes drafts, and how many.

use paceline_scheduler::KByRows;
use serde::Deserialize;

use crate::Failure;

/// Most drafts of a step.
const DRAFTS_MAX: u32 = 64;

/// What is said of drafts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Speculation {
    pub(crate) method: Method,
    /// k: drafts of a row and step.
    pub(crate) k: u32,
    /// k by the running rows of the largest rank; empty: always `k`.
    pub(crate) k_by_rows: Vec<KByRows>,
}

/// Who proposes drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Method {
    /// The request's own tokens.
    Ngram,
    /// The draft layers of the checkpoint, by whatever name users of vLLM call them.
    #[serde(alias = "deepseek_mtp", alias = "glm4_moe_mtp")]
    Mtp,
}

/// The JSON, field by field as vLLM names them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    method: Method,
    num_speculative_tokens: u32,
    /// (from, to, drafts) by rows.
    #[serde(default)]
    num_speculative_tokens_per_batch_size: Option<Vec<(u32, u32, u32)>>,
}

fn usage(message: impl std::fmt::Display) -> Failure {
    Failure::Usage(format!("--speculative-config: {message}"))
}

impl Speculation {
    /// Reads the value of the flag; nothing for `none`.
    ///
    /// # Errors
    /// [`Failure::Usage`] with one line that names the field and both numbers.
    pub(crate) fn read(text: &str) -> Result<Option<Self>, Failure> {
        if text == "none" {
            return Ok(None);
        }
        let Written { method, num_speculative_tokens: k, num_speculative_tokens_per_batch_size: ranges } =
            serde_json::from_str(text).map_err(usage)?;
        if !(1..=DRAFTS_MAX).contains(&k) {
            return Err(usage(format!("num_speculative_tokens is {k}, must be between 1 and {DRAFTS_MAX}")));
        }
        let k_by_rows = by_rows(&ranges.unwrap_or_default(), k)
            .map_err(|what| usage(format!("num_speculative_tokens_per_batch_size: {what}")))?;
        Ok(Some(Self { method, k, k_by_rows }))
    }

    /// One draft by the draft layer.
    pub(crate) const fn one_by_mtp() -> Self {
        Self { method: Method::Mtp, k: 1, k_by_rows: Vec::new() }
    }

    /// Every number of drafts that rows of a pass can have.
    pub(crate) fn k_values(&self) -> Vec<u32> {
        let mut values = self.verified();
        if self.method == Method::Mtp && self.k > 1 {
            // Drafts after the first are made row by row.
            values.push(0);
        }
        values.sort_unstable();
        values.dedup();
        values
    }

    /// Every number of drafts that a step can verify.
    pub(crate) fn verified(&self) -> Vec<u32> {
        let mut values: Vec<u32> = self.k_by_rows.iter().map(|entry| entry.k).collect();
        values.push(self.k);
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// Ranges that begin at 1 and follow each other without gaps; above the last one its number holds.
fn by_rows(ranges: &[(u32, u32, u32)], k_max: u32) -> Result<Vec<KByRows>, String> {
    let mut next = 1;
    for (from, to, k) in ranges {
        if *from != next {
            return Err(format!("a range begins at {from}, must begin at {next}"));
        }
        if to < from {
            return Err(format!("a range from {from} ends at {to}"));
        }
        if *k > k_max {
            return Err(format!("{k} drafts, must be at most num_speculative_tokens, {k_max}"));
        }
        next = to.saturating_add(1);
    }
    Ok(ranges.iter().map(|(_, to, k)| KByRows { rows_most: *to, k: *k }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Speculation>, String> {
        Speculation::read(text).map_err(|failure| failure.to_string())
    }

    #[test]
    fn methods_have_the_names_that_vllm_gives_them() {
        assert_eq!(read("none"), Ok(None));
        for (name, method) in [
            ("ngram", Method::Ngram),
            ("mtp", Method::Mtp),
            ("deepseek_mtp", Method::Mtp),
            ("glm4_moe_mtp", Method::Mtp),
        ] {
            let expected = Speculation { method, k: 2, k_by_rows: Vec::new() };
            assert_eq!(read(&format!("{{\"method\": \"{name}\", \"num_speculative_tokens\": 2}}")), Ok(Some(expected)));
        }
    }

    #[test]
    fn drafts_by_load_are_ranges_from_one_on() {
        let with = |ranges: &str| {
            read(&format!(
                "{{\"method\": \"mtp\", \"num_speculative_tokens\": 3, \
                 \"num_speculative_tokens_per_batch_size\": {ranges}}}"
            ))
        };
        let read = with("[[1, 4, 3], [5, 16, 1], [17, 64, 0]]").expect("valid").expect("drafts");
        let expected = [(4, 3), (16, 1), (64, 0)].map(|(rows_most, k)| KByRows { rows_most, k });
        assert_eq!(read.k_by_rows, expected);
        assert_eq!((read.verified(), read.k_values()), (vec![0, 1, 3], vec![0, 1, 3]));
        for (ranges, expected) in [
            ("[[2, 4, 3]]", "begins at 2, must begin at 1"),
            ("[[1, 4, 3], [6, 8, 1]]", "begins at 6, must begin at 5"),
            ("[[1, 0, 3]]", "from 1 ends at 0"),
            ("[[1, 4, 4]]", "4 drafts, must be at most num_speculative_tokens, 3"),
        ] {
            let line = with(ranges).expect_err(expected);
            assert!(line.contains(expected) && line.contains("per_batch_size"), "{line}");
        }
    }

    #[test]
    fn single_passes_have_rows_of_one_token() {
        let of = |method, k| Speculation { method, k, k_by_rows: Vec::new() }.k_values();
        assert_eq!((of(Method::Mtp, 1), of(Method::Mtp, 3)), (vec![1], vec![0, 3]));
        assert_eq!(of(Method::Ngram, 3), [3]);
    }
}
