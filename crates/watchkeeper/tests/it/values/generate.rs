//! Random values from a seed.

use watchkeeper::core::Entropy;

/// The seed of a run, and how many random values of each type it makes.
pub(super) struct Run {
    pub(super) seed: u64,
    pub(super) cases: u64,
    pub(super) entropy: Entropy,
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}

impl Run {
    pub(super) fn new() -> Self {
        let seed = variable("WATCHKEEPER_VALUES_SEED").unwrap_or(14);
        let cases = variable("WATCHKEEPER_VALUES_CASES").unwrap_or(6);
        Self { seed, cases, entropy: Entropy::seeded(seed) }
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        self.entropy.below(bound)
    }

    pub(super) fn pick<'a, T>(&self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Any 64 bits, often with few of them set at one end.
    pub(super) fn bits(&self) -> u64 {
        let any = self.entropy.next();
        match self.below(3) {
            0 => any,
            1 => any >> self.below(64),
            _ => (any >> self.below(64)).wrapping_neg(),
        }
    }

    pub(super) fn digits(&self, most: u64) -> String {
        let count = 1 + self.below(most);
        (0..count).map(|_| char::from(b'0' + self.below(10) as u8)).collect()
    }

    pub(super) fn decimal(&self, whole: u64, fraction: u64) -> String {
        let sign = if self.below(2) == 0 { "-" } else { "" };
        format!("{sign}{}.{}", self.digits(whole), self.digits(fraction))
    }

    /// A finite number of any size.
    pub(super) fn real(&self) -> f64 {
        let real = f64::from_bits(self.bits());
        if real.is_finite() { real } else { 0.1 }
    }

    /// Text with what is easily mistaken: quotes, signs of other syntaxes, controls, characters of every length.
    pub(super) fn text(&self) -> String {
        const PARTS: [&str; 24] = [
            "a", "B", " ", "\"", "'", "\\", "{", "}", "[", "]", ",", ":", "NULL", "null", "\n", "\t", "\u{1}",
            "\u{7f}", "é", "€", "𝄞", "\u{feff}", "\\x", "$",
        ];
        (0..self.below(12)).map(|_| *self.pick(&PARTS)).collect()
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        (0..self.below(20)).map(|_| self.entropy.next() as u8).collect()
    }

    pub(super) fn hex(&self) -> String {
        self.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// JSON text of some levels. Without control characters, of which the server does not take all, and without a dollar, which marks
    /// values of other types in documents.
    pub(super) fn json(&self, depth: u64) -> String {
        let text = |run: &Self| {
            let text: String = run.text().chars().filter(|sign| !sign.is_control() && *sign != '$').collect();
            serde_json::Value::from(text).to_string()
        };
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => "true".to_owned(),
            1 => self.bits().cast_signed().to_string(),
            2 => self.decimal(25, 25).trim_start_matches("-0").trim_start_matches('0').replacen('.', "7.", 1),
            3 | 4 => text(self),
            5 => {
                let items: Vec<_> = (0..self.below(4)).map(|_| self.json(depth - 1)).collect();
                format!("[{}]", items.join(","))
            }
            _ => {
                let field = |at: u64| format!("\"k{at}\":{}", self.json(depth - 1));
                format!("{{{}}}", (0..self.below(4)).map(field).collect::<Vec<_>>().join(","))
            }
        }
    }
}
