//! What a lesson asks, what was measured, and whether an answer fits it.

use std::fmt;

/// What is asked.
pub enum Question {
    /// A number.
    Number {
        /// What is counted; `ms` takes answers in other units of time, too.
        unit: &'static str,
        /// How far an answer may be off, in percent of what is measured.
        tolerance_percent: f64,
        /// What helps who has answered too little.
        too_low: &'static str,
        /// What helps who has answered too much.
        too_high: &'static str,
    },
    /// One of several words, each with what helps who has taken it and is wrong.
    Choice(&'static [(&'static str, &'static str)]),
}

/// A right answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// One of the words.
    Choice(&'static str),
}

/// What a lesson has measured.
pub struct Measured {
    /// The right answer.
    pub value: Value,
    /// How it was measured, in a sentence.
    pub evidence: String,
}

/// What is to be said of an answer.
#[derive(Debug, PartialEq)]
pub enum Judgement {
    /// It is right; what was measured.
    Right(String),
    /// It is not; what helps.
    Wrong(String),
    /// It is no answer to this question; why.
    Unclear(String),
}

impl Measured {
    pub fn number(number: usize, evidence: String) -> Self {
        Self { value: Value::Number(number as f64), evidence }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Choice(name) => f.write_str(name),
        }
    }
}

impl Question {
    /// How an answer is written, for a command line.
    pub fn placeholder(&self) -> String {
        match self {
            Self::Number { .. } => "NUMBER".into(),
            Self::Choice(of) => of.iter().map(|(name, _)| *name).collect::<Vec<_>>().join("|"),
        }
    }

    /// How exact an answer has to be, in a sentence.
    pub fn tolerance(&self) -> Option<String> {
        match self {
            Self::Number { tolerance_percent: 0.0, .. } => Some("The answer has to be exact.".into()),
            Self::Number { tolerance_percent, .. } => {
                Some(format!("An answer within {tolerance_percent}% is right."))
            }
            Self::Choice(_) => None,
        }
    }

    /// Understands an answer, or says how one is written.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        match self {
            Self::Number { unit, .. } => number(text, unit)
                .map(Value::Number)
                .ok_or_else(|| format!("the answer is a number of {unit}, such as 7")),
            Self::Choice(of) => {
                let chosen = of.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
                let names = || self.placeholder().replace('|', ", ");
                chosen
                    .map(|(name, _)| Value::Choice(name))
                    .ok_or_else(|| format!("the answer is one of {}", names()))
            }
        }
    }

    /// Compares an answer with what was measured.
    pub fn judge(&self, given: Value, measured: Measured) -> Judgement {
        let is_right = match (self, given, measured.value) {
            (Self::Number { tolerance_percent, .. }, Value::Number(given), Value::Number(real)) => {
                (given - real).abs() <= real.abs() * tolerance_percent / 100.0
            }
            (_, given, real) => given == real,
        };
        if is_right {
            return Judgement::Right(measured.evidence);
        }
        Judgement::Wrong(self.hint(given, measured.value).into())
    }

    fn hint(&self, given: Value, real: Value) -> &'static str {
        match (self, given, real) {
            (Self::Number { too_low, too_high, .. }, Value::Number(given), Value::Number(real)) => {
                if given < real { too_low } else { too_high }
            }
            (Self::Choice(of), Value::Choice(given), _) => {
                of.iter().find(|(name, _)| *name == given).map_or("", |(_, hint)| hint)
            }
            _ => "",
        }
    }
}

/// A number with what may stand around it: `~490 ms`, `0.49 s` where milliseconds are asked for, `9 answers`.
fn number(text: &str, unit: &str) -> Option<f64> {
    let text = text.trim_start_matches(['~', '≈']).trim_start();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    let rest = text[end..].trim();
    let factor = match (unit, rest) {
        ("ms", "s") => 1e3,
        ("ms", "us" | "µs") => 1e-3,
        (_, rest) if rest.is_empty() || rest.starts_with(char::is_alphabetic) => 1.0,
        _ => return None,
    };
    Some(value * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Question =
        Question::Number { unit: "ms", tolerance_percent: 10.0, too_low: "low", too_high: "high" };
    const LETTER: Question = Question::Choice(&[("A", "not A"), ("B", "not B")]);

    fn judge(question: &Question, text: &str, value: Value) -> Judgement {
        match question.parse(text) {
            Ok(given) => question.judge(given, Measured { value, evidence: "seen".into() }),
            Err(why) => Judgement::Unclear(why),
        }
    }

    #[test]
    fn numbers_are_taken_within_their_tolerance_and_in_any_unit_of_time() {
        for (text, is_right) in [
            ("500", true),
            ("~ 549 ms", true),
            ("0.46 s", true),
            ("500000us", true),
            ("551", false),
            ("449", false),
        ] {
            let judgement = judge(&MS, text, Value::Number(500.0));
            assert_eq!(judgement == Judgement::Right("seen".into()), is_right, "{text}: {judgement:?}");
        }
        assert_eq!(judge(&MS, "449", Value::Number(500.0)), Judgement::Wrong("low".into()));
        assert_eq!(judge(&MS, "551", Value::Number(500.0)), Judgement::Wrong("high".into()));
        for text in ["", "many", "-3", "1-2", "1.2.3", "5%"] {
            assert!(matches!(judge(&MS, text, Value::Number(500.0)), Judgement::Unclear(_)), "{text}");
        }
    }

    #[test]
    fn words_are_taken_in_any_case_and_a_wrong_one_gets_its_hint() {
        assert_eq!(judge(&LETTER, " b ", Value::Choice("B")), Judgement::Right("seen".into()));
        assert_eq!(judge(&LETTER, "A", Value::Choice("B")), Judgement::Wrong("not A".into()));
        assert!(matches!(judge(&LETTER, "D", Value::Choice("B")), Judgement::Unclear(_)));
    }
}
