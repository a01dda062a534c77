//! Reads the notation of llama.cpp.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Brackets inside brackets.
const DEPTH_MAX: usize = 12;

/// Rules of one grammar.
const RULES_MAX: usize = 2_000;

/// Times that something may be repeated where a number says so.
const REPEATED_MAX: u32 = 1_000;

/// The right side of a rule, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Literal(String),
    /// A class of characters as a regular expression.
    Class(String),
    /// A token by its id or name, in angle brackets.
    Token(String),
    Name(String),
    Sequence(Vec<Expression>),
    Either(Vec<Expression>),
    /// So many times at least, and at most.
    Repeated(Box<Expression>, u32, Option<u32>),
}

impl Expression {
    fn parts(&self) -> &[Self] {
        match self {
            Self::Sequence(parts) | Self::Either(parts) => parts,
            Self::Repeated(item, ..) => std::slice::from_ref(&**item),
            Self::Literal(_) | Self::Class(_) | Self::Token(_) | Self::Name(_) => &[],
        }
    }

    /// Names of the rules that it uses.
    pub(crate) fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match self {
            Self::Name(name) => Box::new(std::iter::once(name.as_str())),
            other => Box::new(other.parts().iter().flat_map(Self::names)),
        }
    }

    /// Whether a token stands in it.
    pub(crate) fn has_token(&self) -> bool {
        matches!(self, Self::Token(_)) || self.parts().iter().any(Self::has_token)
    }
}

/// The rules of a grammar by their names; what is wrong with it, and in which line.
pub(crate) fn parse(text: &str) -> Result<BTreeMap<String, Expression>, String> {
    let mut reader = Reader { text, place: 0, depth: 0 };
    let mut rules = BTreeMap::new();
    reader.skip_blanks();
    while !reader.rest().is_empty() {
        let Some(name) = reader.rule_head() else { return Err(reader.error("expected a rule, `name ::= ...`")) };
        let expression = reader.either()?;
        if !reader.rest().is_empty() && reader.peek_rule_head().is_none() {
            return Err(reader.error("expected the end of the rule"));
        }
        if rules.len() == RULES_MAX {
            return Err(reader.error(&format!("at most {RULES_MAX} rules are taken")));
        }
        if rules.insert(name.clone(), expression).is_some() {
            return Err(reader.error(&format!("the rule {name} is given twice")));
        }
    }
    Ok(rules)
}

struct Reader<'a> {
    text: &'a str,
    place: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.place..]
    }

    fn error(&self, message: &str) -> String {
        let line = self.text[..self.place].matches('\n').count() + 1;
        let near: String = self.rest().chars().take(20).collect();
        format!("line {line}: {message}, got {near:?}")
    }

    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest().trim_start();
            self.place = self.text.len() - rest.len();
            if !rest.starts_with('#') {
                return;
            }
            self.place += rest.find('\n').unwrap_or(rest.len());
        }
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.place += text.len();
        }
        found
    }

    fn name(&mut self) -> Option<String> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        let rest = self.rest();
        let name = &rest[..rest.len() - rest.trim_start_matches(is_name).len()];
        self.place += name.len();
        (!name.is_empty()).then(|| name.to_owned())
    }

    fn rule_head(&mut self) -> Option<String> {
        let name = self.name()?;
        self.skip_blanks();
        let found = self.take("::=");
        self.skip_blanks();
        found.then_some(name)
    }

    /// A name that begins the next rule.
    fn peek_rule_head(&mut self) -> Option<String> {
        let before = self.place;
        let name = self.rule_head();
        self.place = before;
        name
    }

    fn either(&mut self) -> Result<Expression, String> {
        let mut choices = vec![self.sequence()?];
        while self.take("|") {
            self.skip_blanks();
            choices.push(self.sequence()?);
        }
        Ok(if choices.len() == 1 { choices.remove(0) } else { Expression::Either(choices) })
    }

    fn sequence(&mut self) -> Result<Expression, String> {
        let mut parts = Vec::new();
        while !self.rest().is_empty() && !self.rest().starts_with(['|', ')']) && self.peek_rule_head().is_none() {
            let atom = self.atom()?;
            let part = self.repeated(atom)?;
            parts.push(part);
            self.skip_blanks();
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Sequence(parts) })
    }

    fn atom(&mut self) -> Result<Expression, String> {
        if let Some(name) = self.name() {
            return Ok(Expression::Name(name));
        }
        if self.take("(") {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(self.error(&format!("at most {DEPTH_MAX} brackets may stand in each other")));
            }
            self.skip_blanks();
            let inner = self.either()?;
            self.depth -= 1;
            return if self.take(")") { Ok(inner) } else { Err(self.error("expected `)`")) };
        }
        if self.take("\"") {
            return self.literal();
        }
        if self.take("[") {
            return self.class();
        }
        if self.take(".") {
            return Ok(Expression::Class("(?s:.)".to_owned()));
        }
        let token = self.rest().find('>').map(|end| &self.rest()[..=end]);
        match token.filter(|token| token.starts_with('<') && !token.contains(char::is_whitespace)) {
            Some(token) => {
                self.place += token.len();
                Ok(Expression::Token(token.to_owned()))
            }
            None => Err(self.error("expected a name, a literal, a class or `(`")),
        }
    }

    /// An atom and how often it comes.
    fn repeated(&mut self, atom: Expression) -> Result<Expression, String> {
        let (least, most) = if self.take("*") {
            (0, None)
        } else if self.take("+") {
            (1, None)
        } else if self.take("?") {
            (0, Some(1))
        } else if self.rest().starts_with('{') {
            self.counts()?
        } else {
            return Ok(atom);
        };
        if self.rest().starts_with(['*', '+', '?', '{']) {
            return Err(self.error("what is repeated is repeated again without brackets"));
        }
        Ok(Expression::Repeated(Box::new(atom), least, most))
    }

    /// `{n}`, `{n,}`, `{,m}` or `{n,m}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), String> {
        let wrong = || self.error(&format!("expected {{n}}, {{n,}} or {{n,m}} with numbers up to {REPEATED_MAX}"));
        let end = self.rest().find('}').ok_or_else(wrong)?;
        let inner = &self.rest()[1..end];
        let number = |text: &str| text.trim().parse().ok().filter(|number| *number <= REPEATED_MAX).ok_or_else(wrong);
        let (least, most) = match inner.split_once(',') {
            None => (number(inner)?, Some(number(inner)?)),
            Some((least, most)) => {
                let least = if least.trim().is_empty() { 0 } else { number(least)? };
                (least, if most.trim().is_empty() { None } else { Some(number(most)?) })
            }
        };
        if most.is_some_and(|most| most < least) {
            return Err(wrong());
        }
        self.place += end + 1;
        Ok((least, most))
    }

    fn literal(&mut self) -> Result<Expression, String> {
        let mut text = String::new();
        while !self.take("\"") {
            text.push(self.character()?);
        }
        Ok(Expression::Literal(text))
    }

    fn class(&mut self) -> Result<Expression, String> {
        let mut class = (if self.take("^") { "[^" } else { "[" }).to_owned();
        let mut is_empty = true;
        while !self.take("]") {
            is_empty = false;
            let first = self.character()?;
            let _ = write!(class, "\\x{{{:x}}}", u32::from(first));
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.place += 1;
                let last = self.character()?;
                if last < first {
                    return Err(self.error(&format!("the range {first:?}-{last:?} is the wrong way round")));
                }
                let _ = write!(class, "-\\x{{{:x}}}", u32::from(last));
            }
        }
        class.push(']');
        if is_empty { Err(self.error("the class of characters is empty")) } else { Ok(Expression::Class(class)) }
    }

    /// One character of a literal or a class.
    fn character(&mut self) -> Result<char, String> {
        let mut letters = self.rest().chars();
        let Some(letter) = letters.next() else { return Err(self.error("the text ends in the middle of it")) };
        self.place += letter.len_utf8();
        if letter != '\\' {
            return Ok(letter);
        }
        let Some(escaped) = letters.next() else { return Err(self.error("the text ends in the middle of it")) };
        self.place += escaped.len_utf8();
        let digits = match escaped {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            // Brackets, quotes, the escape itself, and what need not be escaped.
            other => return Ok(other),
        };
        let code =
            self.rest().get(..digits).and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        let Some(code) = code else {
            return Err(self.error(&format!("expected {digits} hexadecimal digits of a character")));
        };
        self.place += digits;
        Ok(code)
    }
}
