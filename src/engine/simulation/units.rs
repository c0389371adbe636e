//! Times, sizes and rates as scenario files write them: one value, or a range of which the seed takes one.

use serde::Deserialize;

use crate::time::Span;

/// A time or a span: `5s`, `20ms`, `10us`, `500ns`, or `10ms..50ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct When(u64, u64);

impl When {
    pub(super) fn pick(self, rng: &mut fastrand::Rng) -> Span {
        Span::from_nanos(if self.0 == self.1 { self.0 } else { rng.u64(self.0..=self.1) })
    }

    pub(super) fn first(self) -> Span {
        Span::from_nanos(self.0)
    }
}

impl From<Span> for When {
    fn from(span: Span) -> When {
        When(span.as_nanos(), span.as_nanos())
    }
}

impl TryFrom<String> for When {
    type Error = String;
    fn try_from(text: String) -> Result<When, String> {
        let wrong = || format!("`{text}` is not a time such as 5s, 20ms or 10ms..50ms, of at most an hour");
        let (a, b) = range(&text, nanos).filter(|r| r.1 <= 3600 * 1_000_000_000).ok_or_else(wrong)?;
        Ok(When(a, b))
    }
}

fn nanos(text: &str) -> Option<u64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// Bytes: `100`, `64K`, `1M`, or `1K..100K`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Bytes(u64, u64);

impl Bytes {
    pub(super) fn of(bytes: u64) -> Bytes {
        Bytes(bytes, bytes)
    }

    pub(super) fn most(self) -> u64 {
        self.1
    }

    pub(super) fn range(self) -> (u64, u64) {
        (self.0, self.1)
    }
}

impl TryFrom<String> for Bytes {
    type Error = String;
    fn try_from(text: String) -> Result<Bytes, String> {
        let wrong = || format!("`{text}` is not a number of bytes such as 100, 64K or 1K..1M");
        let (a, b) = range(&text, bytes).ok_or_else(wrong)?;
        Ok(Bytes(a, b))
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Bits per second: `400mbit` or `10gbit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Rate(u64);

impl Rate {
    pub(super) fn bits(self) -> u64 {
        self.0
    }
}

impl TryFrom<String> for Rate {
    type Error = String;
    fn try_from(text: String) -> Result<Rate, String> {
        let unit = |unit, factor: u64| text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(factor);
        let bits = unit("mbit", 1_000_000).or_else(|| unit("gbit", 1_000_000_000));
        let fits = bits.filter(|b| (1_000_000..=1_000_000_000_000).contains(b));
        fits.map(Rate).ok_or_else(|| format!("`{text}` is not a rate between 1mbit and 1000gbit"))
    }
}

fn range(text: &str, one: impl Fn(&str) -> Option<u64>) -> Option<(u64, u64)> {
    let (a, b) = text.split_once("..").unwrap_or((text, text));
    let (a, b) = (one(a)?, one(b)?);
    (a <= b).then_some((a, b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sizes_and_rates_are_read() {
        let when = |t: &str| When::try_from(t.to_owned());
        assert_eq!(when("20ms"), Ok(Span::from_millis(20).into()));
        assert_eq!(when("1us..2s"), Ok(When(1000, 2_000_000_000)));
        let bytes = |t: &str| Bytes::try_from(t.to_owned());
        assert_eq!(
            (bytes("64K"), bytes("7"), bytes("1K..1M")),
            (Ok(Bytes(65_536, 65_536)), Ok(Bytes(7, 7)), Ok(Bytes(1024, 1 << 20)))
        );
        let rate = |t: &str| Rate::try_from(t.to_owned());
        assert_eq!((rate("400mbit"), rate("10gbit")), (Ok(Rate(400_000_000)), Ok(Rate(10_000_000_000))));
        assert!(["", "5", "ms", "-1ms", "2s..1s", "5h", "99999999999s", "4000s"].iter().all(|t| when(t).is_err()));
        assert!(["", "K", "1G", "-1", "2K..1K"].iter().all(|t| bytes(t).is_err()));
        assert!(["", "mbit", "0mbit", "5", "9999gbit"].iter().all(|t| rate(t).is_err()));
    }
}
