//! Reads and writes `.cm` files: who sends how much to whom, and when.

use std::fmt;

use thiserror::Error;

/// A connection matrix.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Matrix {
    /// Hosts.
    pub hosts: u32,
    /// The flows in the order of the file.
    pub flows: Vec<FlowSpec>,
    /// What starts flows when others are done.
    pub triggers: Vec<Trigger>,
    /// Links that are missing from the start.
    pub failures: Vec<LinkFailure>,
}

/// One flow: a message from a host to another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FlowSpec {
    /// The sender.
    pub from: u32,
    /// The receiver.
    pub to: u32,
    /// Its number in the file, from 1; 0 if it has none.
    pub id: u32,
    /// When it begins.
    pub start: Start,
    /// Bytes of payload, from 1 to 2^31 - 1.
    pub bytes: u32,
    /// The trigger that it sets off when everything is acknowledged.
    pub when_sent: Option<u32>,
    /// The trigger that it sets off when everything has arrived.
    pub when_received: Option<u32>,
}

/// When a flow begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// At so many whole microseconds.
    At(u32),
    /// When a trigger goes off.
    Trigger(u32),
}

/// What starts flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trigger {
    /// Its number, from 1.
    pub id: u32,
    /// When it goes off.
    pub kind: TriggerKind,
}

/// When a trigger goes off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TriggerKind {
    /// The first time, for all its flows.
    OneShot,
    /// Each time, for the next of its flows.
    MultiShot,
    /// When it was set off so often, for all its flows.
    Barrier(u32),
}

/// A link between the second and the third tier that is missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkFailure {
    /// The switch of the second tier.
    pub switch: u32,
    /// Its link upwards.
    pub link: u32,
}

/// Why a `.cm` file was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("line {line}: {what}")]
pub struct MatrixError {
    /// The line, counted from 1; the last one if something is missing.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl Matrix {
    /// Reads the text of a `.cm` file.
    ///
    /// Traps of the format, kept so that a file means the same here as elsewhere: `start` is a decimal number of
    /// microseconds of which only the whole ones count (generators that write picoseconds therefore start flows a
    /// million times later than they meant); `size` is at most 2^31 - 1; numbers are separated by one space each;
    /// comments and empty lines are allowed only above the first flow.
    ///
    /// # Errors
    ///
    /// Lines that do not follow the format, counts that differ from the header's, hosts and triggers that do not
    /// exist, and several messages on one connection (`msg`), which are not simulated.
    pub fn parse(text: &str) -> Result<Matrix, MatrixError> {
        let mut m = Matrix::default();
        let (mut nodes, mut connections, mut triggers, mut failures) = (None, None, None, None);
        let mut last = 1;
        let mut body = false;
        for (at, raw) in text.lines().enumerate() {
            let line = at + 1;
            last = line;
            let fail = |what: String| MatrixError { line, what };
            let raw = raw.trim_end_matches('\r');
            if raw.trim().is_empty() || raw.starts_with('#') {
                if body && text.lines().skip(line).any(|l| !l.trim().is_empty()) {
                    return Err(fail("empty lines and comments are allowed only above the first flow".into()));
                }
                continue;
            }
            let words: Vec<&str> = raw.trim_end().split(' ').collect();
            if words.contains(&"") {
                return Err(fail("words are separated by one space, and lines do not begin with one".into()));
            }
            let header = match words[0].to_ascii_lowercase().as_str() {
                "nodes" => Some(&mut nodes),
                "connections" => Some(&mut connections),
                "triggers" => Some(&mut triggers),
                "failures" => Some(&mut failures),
                _ => None,
            };
            if let Some(slot) = header {
                if body {
                    return Err(fail(format!("`{}` comes after the first flow", words[0])));
                }
                let [_, value] = words[..] else {
                    return Err(fail(format!("`{}` takes one number", words[0])));
                };
                let number = whole(value).map_err(fail)?;
                if slot.replace(number).is_some() {
                    return Err(fail(format!("`{}` is given twice", words[0])));
                }
                continue;
            }
            body = true;
            match words[0] {
                "trigger" => m.triggers.push(trigger(&words).map_err(fail)?),
                "failure" => m.failures.push(failure(&words).map_err(fail)?),
                _ => m.flows.push(flow(&words).map_err(fail)?),
            }
        }
        let fail = |what: String| MatrixError { line: last, what };
        m.hosts = nodes.ok_or_else(|| fail("`Nodes` is missing".into()))?;
        let count = connections.ok_or_else(|| fail("`Connections` is missing".into()))?;
        for (name, stated, is) in [
            ("Connections", count, m.flows.len()),
            ("Triggers", triggers.unwrap_or(0), m.triggers.len()),
            ("Failures", failures.unwrap_or(0), m.failures.len()),
        ] {
            if stated as usize != is {
                return Err(fail(format!("`{name} {stated}`, but there are {is}")));
            }
        }
        m.check().map_err(fail)?;
        Ok(m)
    }

    /// Checks what one line cannot show.
    fn check(&self) -> Result<(), String> {
        let mut known: Vec<u32> = self.triggers.iter().map(|t| t.id).collect();
        known.sort_unstable();
        if let Some(twice) = known.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("trigger {} is defined twice", twice[0]));
        }
        let mut ids: Vec<u32> = self.flows.iter().map(|f| f.id).filter(|&id| id > 0).collect();
        ids.sort_unstable();
        if let Some(twice) = ids.windows(2).find(|w| w[0] == w[1]) {
            return Err(format!("id {} is given to two flows", twice[0]));
        }
        for f in &self.flows {
            let name = format!("{}->{}", f.from, f.to);
            if f.from >= self.hosts || f.to >= self.hosts {
                return Err(format!("{name}: there are {} hosts, counted from 0", self.hosts));
            }
            if f.from == f.to {
                return Err(format!("{name}: a host does not send to itself"));
            }
            let waits = if let Start::Trigger(t) = f.start { Some(t) } else { None };
            for t in [waits, f.when_sent, f.when_received].into_iter().flatten() {
                if known.binary_search(&t).is_err() {
                    return Err(format!("{name}: trigger {t} is not defined"));
                }
                if f.id == 0 {
                    return Err(format!("{name}: a flow with triggers needs an id above 0"));
                }
            }
        }
        Ok(())
    }
}

fn whole(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a whole number below 2^32"))
}

/// Microseconds, of which the whole ones count.
fn start(text: &str) -> Result<u32, String> {
    let us: f32 = text.parse().map_err(|_| format!("`{text}` is not a number of microseconds"))?;
    if !(0.0..=u32::MAX as f32).contains(&us) {
        return Err(format!("start {text} is not between 0 and 2^32 microseconds"));
    }
    Ok(us as u32)
}

fn flow(words: &[&str]) -> Result<FlowSpec, String> {
    let ends = words[0].split_once("->").ok_or_else(|| format!("`{}` is neither a flow nor a keyword", words[0]))?;
    let mut f = FlowSpec {
        from: whole(ends.0)?,
        to: whole(ends.1)?,
        id: 0,
        start: Start::At(0),
        bytes: 0,
        when_sent: None,
        when_received: None,
    };
    let mut begins = false;
    let mut pairs = words[1..].chunks_exact(2);
    for pair in &mut pairs {
        let (key, value) = (pair[0], pair[1]);
        match key {
            "id" => {
                f.id = whole(value)?;
                if f.id == 0 {
                    return Err("ids are above 0".into());
                }
            }
            "start" | "trigger" if begins => return Err("a flow has one `start` or one `trigger`".into()),
            "start" => (f.start, begins) = (Start::At(start(value)?), true),
            "trigger" => (f.start, begins) = (Start::Trigger(whole(value)?), true),
            "size" => {
                f.bytes = whole(value)?;
                if f.bytes == 0 || f.bytes > i32::MAX as u32 {
                    return Err(format!("size {value} is not between 1 and 2147483647"));
                }
            }
            "send_done_trigger" => f.when_sent = Some(whole(value)?),
            "recv_done_trigger" => f.when_received = Some(whole(value)?),
            "prio" => {
                whole(value)?;
            }
            "msg" => return Err("several messages on one connection (`msg`) are not simulated".into()),
            _ => return Err(format!("`{key}` is not a word of a flow")),
        }
    }
    if let [rest] = pairs.remainder() {
        return Err(format!("`{rest}` has no value"));
    }
    if !begins || f.bytes == 0 {
        return Err("a flow needs a `size` and a `start` or `trigger`".into());
    }
    Ok(f)
}

fn trigger(words: &[&str]) -> Result<Trigger, String> {
    let (id, kind) = match words[1..] {
        ["id", id, "oneshot"] => (id, TriggerKind::OneShot),
        ["id", id, "multishot"] => (id, TriggerKind::MultiShot),
        ["id", id, "barrier", "count", count] => (id, TriggerKind::Barrier(whole(count)?)),
        _ => return Err("a trigger is `trigger id N oneshot|multishot|barrier count N`".into()),
    };
    match whole(id)? {
        0 => Err("ids are above 0".into()),
        id => Ok(Trigger { id, kind }),
    }
}

fn failure(words: &[&str]) -> Result<LinkFailure, String> {
    match words[1..] {
        ["switch_type", "AGG", "switch_id", switch, "link_id", link] => {
            Ok(LinkFailure { switch: whole(switch)?, link: whole(link)? })
        }
        _ => Err("a failure is `failure switch_type AGG switch_id N link_id N`".into()),
    }
}

impl fmt::Display for Matrix {
    /// The text that [`Matrix::parse`] reads.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Nodes {}\nConnections {}", self.hosts, self.flows.len())?;
        if !self.triggers.is_empty() {
            writeln!(f, "Triggers {}", self.triggers.len())?;
        }
        if !self.failures.is_empty() {
            writeln!(f, "Failures {}", self.failures.len())?;
        }
        for flow in &self.flows {
            write!(f, "{}->{}", flow.from, flow.to)?;
            if flow.id > 0 {
                write!(f, " id {}", flow.id)?;
            }
            match flow.start {
                Start::At(us) => write!(f, " start {us}")?,
                Start::Trigger(t) => write!(f, " trigger {t}")?,
            }
            write!(f, " size {}", flow.bytes)?;
            if let Some(t) = flow.when_sent {
                write!(f, " send_done_trigger {t}")?;
            }
            if let Some(t) = flow.when_received {
                write!(f, " recv_done_trigger {t}")?;
            }
            writeln!(f)?;
        }
        for t in &self.triggers {
            match t.kind {
                TriggerKind::OneShot => writeln!(f, "trigger id {} oneshot", t.id)?,
                TriggerKind::MultiShot => writeln!(f, "trigger id {} multishot", t.id)?,
                TriggerKind::Barrier(n) => writeln!(f, "trigger id {} barrier count {n}", t.id)?,
            }
        }
        for x in &self.failures {
            writeln!(f, "failure switch_type AGG switch_id {} link_id {}", x.switch, x.link)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_files_are_read_and_written_back() {
        let perm = include_str!("../../../tests/fabric/perm128_8M_s1.cm");
        let m = Matrix::parse(perm).expect("a good file");
        assert_eq!((m.hosts, m.flows.len(), m.flows[0].from, m.flows[0].to), (128, 128, 14, 127));
        assert_eq!(m.to_string(), perm);
        let mix = include_str!("../../../tests/fabric/mix_rpc.cm");
        let m = Matrix::parse(mix).expect("a good file");
        assert_eq!((m.flows.len(), m.triggers.len()), (768, 608));
        let f = m.flows.iter().find(|f| f.id == 130).expect("in the file");
        assert_eq!((f.start, f.bytes, f.when_sent), (Start::Trigger(1), 4086, Some(2)));
        assert_eq!(m.to_string(), mix);
        let incast = Matrix::parse(include_str!("../../../tests/fabric/incast32_1M.cm")).expect("a good file");
        assert!(incast.flows.iter().all(|f| f.to == 0 && f.bytes == 1 << 20));
    }

    #[test]
    fn starts_are_cut_to_whole_microseconds() {
        let m =
            Matrix::parse("# a comment\n\nNodes 2\nConnections 2\n0->1 start 1.9 size 5\n1->0 id 3 start 2e6 size 1")
                .expect("a good file");
        assert_eq!((m.flows[0].start, m.flows[1].start), (Start::At(1), Start::At(2_000_000)));
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_reason() {
        let with =
            |body: &str| Matrix::parse(&format!("Nodes 4\nConnections 1\n{body}")).expect_err("a bad file").to_string();
        assert_eq!(with("0->4 id 1 start 0 size 1"), "line 3: 0->4: there are 4 hosts, counted from 0");
        assert_eq!(with("0->0 start 0 size 1"), "line 3: 0->0: a host does not send to itself");
        assert_eq!(with("0->1 start 0 size 2147483648"), "line 3: size 2147483648 is not between 1 and 2147483647");
        assert_eq!(
            with("0->1 start 0  size 1"),
            "line 3: words are separated by one space, and lines do not begin with one"
        );
        assert_eq!(with("0->1 start 0 size"), "line 3: `size` has no value");
        assert_eq!(with("0->1 size 1"), "line 3: a flow needs a `size` and a `start` or `trigger`");
        assert_eq!(
            with("0->1 start 0 size 1\n\n1->2 start 0 size 1"),
            "line 4: empty lines and comments are allowed only above the first flow"
        );
        assert_eq!(with("0->1 start 0 size 1\n1->0 start 0 size 1"), "line 4: `Connections 1`, but there are 2");
        assert_eq!(with("0->1 id 0 start 0 size 1"), "line 3: ids are above 0");
        assert_eq!(with("0->1 id 1 trigger 7 size 1"), "line 3: 0->1: trigger 7 is not defined");
        assert_eq!(
            with("0->1 id 1 msg 3 start 0 size 1"),
            "line 3: several messages on one connection (`msg`) are not simulated"
        );
        assert_eq!(with("0->1 id 1 start soon size 1"), "line 3: `soon` is not a number of microseconds");
        assert_eq!(with("0-1 id 1"), "line 3: `0-1` is neither a flow nor a keyword");
        assert_eq!(with("trigger id 1 twice"), "line 3: a trigger is `trigger id N oneshot|multishot|barrier count N`");
        assert_eq!(Matrix::parse("Connections 0").expect_err("no hosts").to_string(), "line 1: `Nodes` is missing");
    }
}
