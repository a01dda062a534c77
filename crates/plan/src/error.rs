//! What can be wrong with a plan, with the numbers.

/// A plan, a part of one, or a reply that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rule of the step contract is broken.
    #[error("rule {rule}: {field}: expected {expected}, got {got}")]
    Rule {
        /// Number of the rule.
        rule: u32,
        /// What is wrong, by its field name.
        field: &'static str,
        /// What the rule asks for: the exact value or the nearest bound.
        expected: i64,
        /// What the plan says.
        got: i64,
    },
    /// The bytes are not a plan.
    #[error("decode: {message}")]
    Decode {
        /// What the decoder met.
        message: String,
    },
}

impl Error {
    /// A broken rule with both numbers. Out of the way of checks that pass.
    #[cold]
    pub fn rule(rule: u32, field: &'static str, expected: impl Into<i64>, got: impl Into<i64>) -> Self {
        Self::Rule { rule, field, expected: expected.into(), got: got.into() }
    }

    /// Name of the broken rule as it travels in a refusal: `rule 4`, or `decode`.
    pub fn rule_name(&self) -> String {
        match self {
            Self::Rule { rule, .. } => format!("rule {rule}"),
            Self::Decode { .. } => "decode".to_owned(),
        }
    }
}

/// Fails with the numbers unless `got == expected`.
#[inline]
pub(crate) fn check_equal(rule: u32, field: &'static str, expected: i64, got: i64) -> Result<(), Error> {
    if expected == got { Ok(()) } else { Err(Error::rule(rule, field, expected, got)) }
}

/// Fails with the numbers unless `got <= most`.
#[inline]
pub(crate) fn check_at_most(rule: u32, field: &'static str, most: i64, got: i64) -> Result<(), Error> {
    if got <= most { Ok(()) } else { Err(Error::rule(rule, field, most, got)) }
}

/// Fails with the numbers unless `got >= least`.
#[inline]
pub(crate) fn check_at_least(rule: u32, field: &'static str, least: i64, got: i64) -> Result<(), Error> {
    if got >= least { Ok(()) } else { Err(Error::rule(rule, field, least, got)) }
}
