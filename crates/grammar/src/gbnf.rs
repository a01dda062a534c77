//! Grammars in the notation of llama.cpp (GBNF, `root ::= ...`), rewritten in Lark's syntax.
//!
//! Whatever is regular becomes a terminal, as much of it at once as there is: a lexer reads the longest terminal, so that
//! two that stand side by side could be told apart too late. Where the notation is ambiguous about which of two terminals
//! goes on, an answer may find less allowed than the notation says, never more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::Error;
use crate::gbnf_parser::{Expression, parse};

/// Whether a text has a rule in this notation.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        let rest = line.trim_start().trim_start_matches(is_name);
        rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
    })
}

/// The same grammar in Lark's syntax, from its rule `root`.
pub(crate) fn to_lark(text: &str) -> Result<String, Error> {
    let rules = parse(text).map_err(|message| Error::Source { message })?;
    let unknown = rules.values().flat_map(Expression::names).find(|name| !rules.contains_key(*name));
    if let Some(name) = unknown {
        return Err(Error::Source { message: format!("the rule {name} is used and not given") });
    }
    if !rules.contains_key("root") {
        return Err(Error::Source { message: "no rule root is given".to_owned() });
    }
    let regular = regular(&rules);
    let writer =
        Writer { numbers: rules.keys().zip(0..).map(|(name, index)| (name.as_str(), index)).collect(), regular };
    let mut lark = format!("start: {}\n", writer.name("root"));
    for (name, expression) in &rules {
        let is_terminal = writer.regular.contains(name.as_str());
        let mut terminals = Vec::new();
        let body =
            if is_terminal { writer.terminal(expression) } else { writer.rule(name, expression, &mut terminals) };
        let _ = writeln!(lark, "{}: {body}", writer.name(name));
        terminals.iter().for_each(|terminal| lark.push_str(terminal));
    }
    Ok(lark)
}

/// The rules without recursion and without tokens: each can be one terminal.
fn regular(rules: &BTreeMap<String, Expression>) -> BTreeSet<&str> {
    let mut regular = BTreeSet::new();
    loop {
        let before = regular.len();
        for (name, expression) in rules {
            if !expression.has_token() && expression.names().all(|used| regular.contains(used)) {
                regular.insert(name.as_str());
            }
        }
        if regular.len() == before {
            return regular;
        }
    }
}

struct Writer<'a> {
    numbers: BTreeMap<&'a str, usize>,
    regular: BTreeSet<&'a str>,
}

impl Writer<'_> {
    fn name(&self, name: &str) -> String {
        let number = self.numbers[name];
        if self.regular.contains(name) { format!("RULE_{number}") } else { format!("rule_{number}") }
    }

    fn is_regular(&self, expression: &Expression) -> bool {
        !expression.has_token() && expression.names().all(|name| self.regular.contains(name))
    }

    /// What is regular, inside a terminal.
    fn terminal(&self, expression: &Expression) -> String {
        self.write(expression, &mut |part| self.terminal(part))
    }

    /// The body of a rule. What is regular in it becomes a terminal of its own.
    fn rule(&self, name: &str, expression: &Expression, terminals: &mut Vec<String>) -> String {
        if self.is_regular(expression) {
            return match expression {
                Expression::Name(name) => self.name(name),
                Expression::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
                _ => {
                    let terminal = format!("PART_{}_{}", self.numbers[name], terminals.len());
                    terminals.push(format!("{terminal}: {}\n", self.terminal(expression)));
                    terminal
                }
            };
        }
        let Expression::Sequence(parts) = expression else {
            return self.write(expression, &mut |part| self.rule(name, part, terminals));
        };
        // Regular parts side by side are one terminal.
        let runs = parts.chunk_by(|left, right| self.is_regular(left) && self.is_regular(right));
        let runs: Vec<String> = runs
            .map(|run| match run {
                [part] => self.rule(name, part, terminals),
                run => self.rule(name, &Expression::Sequence(run.to_vec()), terminals),
            })
            .collect();
        format!("({})", runs.join(" "))
    }

    fn write(&self, expression: &Expression, inner: &mut dyn FnMut(&Expression) -> String) -> String {
        match expression {
            Expression::Literal(text) => crate::source::literal(text),
            Expression::Class(class) => format!("/{class}/"),
            Expression::Token(token) => token.clone(),
            Expression::Name(name) => self.name(name),
            Expression::Sequence(parts) if parts.is_empty() => "\"\"".to_owned(),
            Expression::Sequence(parts) => format!("({})", parts.iter().map(inner).collect::<Vec<_>>().join(" ")),
            Expression::Either(parts) => format!("({})", parts.iter().map(inner).collect::<Vec<_>>().join(" | ")),
            Expression::Repeated(item, least, most) => {
                let item = inner(item);
                match (least, most) {
                    (_, Some(0)) => "\"\"".to_owned(),
                    (0, None) => format!("({item})*"),
                    (1, None) => format!("({item})+"),
                    (least, None) => format!("({item}){{{least},}}"),
                    (least, Some(most)) => format!("({item}){{{least},{most}}}"),
                }
            }
        }
    }
}
