//! The layering of ARCHITECTURE.md, kept by a test: imports go down only, `unsafe` stays in its files,
//! files stay small.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Most lines of a source file.
const MAX_LINES: usize = 700;

/// Files that a tool writes: as long as they come out.
const GENERATED: &[&str] = &["verbs/sys.rs"];

/// A room, the rooms it may import, and its files that may hold `unsafe`.
struct Room {
    name: &'static str,
    may: &'static [&'static str],
    unsafe_files: &'static [&'static str],
}

const fn room(name: &'static str, may: &'static [&'static str], unsafe_files: &'static [&'static str]) -> Room {
    Room { name, may, unsafe_files }
}

/// The same table as ARCHITECTURE.md's; `the_document_has_the_same_table` compares them.
const ROOMS: &[Room] = &[
    room("time", &[], &[]),
    room("seq", &[], &[]),
    room("class", &[], &[]),
    room("hist", &["time"], &[]),
    room("mem", &[], &["src/mem/copy.rs", "src/mem/region.rs"]),
    room("wire", &["class", "seq", "time"], &[]),
    room("lanes", &["class", "mem", "seq", "time"], &[]),
    room("topology", &["lanes"], &[]),
    room("roce", &["class", "hist", "mem", "seq", "time", "wire"], &[]),
    room("policy", &["time"], &[]),
    room("path", &["class", "hist", "lanes", "seq", "time"], &[]),
    room("congestion", &["class", "hist", "lanes", "path", "seq", "time"], &[]),
    room("spray", &["class", "congestion", "hist", "lanes", "mem", "path", "seq", "time"], &[]),
    room("embedded", &["class", "hist", "lanes", "mem", "roce", "seq", "time", "wire"], &[]),
    room("soft", &["class", "embedded", "hist", "lanes", "mem", "roce", "seq", "time", "wire"], &["src/soft/udp.rs"]),
    room("sim", &["class", "embedded", "hist", "lanes", "mem", "policy", "roce", "seq", "time", "wire"], &[]),
    room(
        "verbs",
        &["class", "lanes", "mem", "seq", "time"],
        &[
            "src/verbs/sys.rs",
            "src/verbs/dl.rs",
            "src/verbs/ext.rs",
            "src/verbs/device.rs",
            "src/verbs/port.rs",
            "src/verbs/pd.rs",
            "src/verbs/mr.rs",
            "src/verbs/cq.rs",
            "src/verbs/ah.rs",
            "src/verbs/batch.rs",
            "src/verbs/qp.rs",
            "src/verbs/events.rs",
            "src/verbs/check.rs",
            "src/verbs/mlx5.rs",
        ],
    ),
    room("bootstrap", &["class", "lanes", "seq", "time", "topology"], &[]),
    room("engine", &["bootstrap", "class", "embedded", "hist", "lanes", "mem", "sim", "soft", "spray", "time"], &[]),
    room(
        "api",
        &[
            "bootstrap",
            "class",
            "embedded",
            "engine",
            "hist",
            "lanes",
            "mem",
            "root",
            "soft",
            "spray",
            "time",
            "topology",
            "verbs",
        ],
        &["src/api/buffer.rs", "src/api/memory.rs"],
    ),
    room("qualify", &["class", "mem", "root", "time", "topology", "verbs"], &[]),
];

/// What the command may name of the library besides re-exports of its root.
const COMMAND_MAY: &[&str] = &["class", "policy", "sim", "time", "topology"];

/// Rust source with comments, strings and character literals blanked out; lines stay where they are.
fn code_only(source: &str) -> String {
    let s: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let blank = |out: &mut String, c: char| out.push(if c == '\n' { '\n' } else { ' ' });
    let mut i = 0;
    while i < s.len() {
        let next = s.get(i + 1).copied().unwrap_or('\0');
        let ident_before = i > 0 && (s[i - 1].is_alphanumeric() || s[i - 1] == '_');
        if s[i] == '/' && next == '/' {
            while i < s.len() && s[i] != '\n' {
                out.push(' ');
                i += 1;
            }
        } else if s[i] == '/' && next == '*' {
            let mut depth = 0usize;
            loop {
                let pair = (s.get(i).copied(), s.get(i + 1).copied());
                let step = match pair {
                    (Some('/'), Some('*')) => {
                        depth += 1;
                        2
                    }
                    (Some('*'), Some('/')) => {
                        depth -= 1;
                        2
                    }
                    (None, _) => break,
                    _ => 1,
                };
                for _ in 0..step {
                    blank(&mut out, s[i]);
                    i += 1;
                }
                if depth == 0 {
                    break;
                }
            }
        } else if let Some(hashes) = raw_string_at(&s, i).filter(|_| !ident_before) {
            let close: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let close: Vec<char> = close.chars().collect();
            while s[i] != '"' {
                out.push(' ');
                i += 1;
            }
            out.push(' ');
            i += 1;
            while i < s.len() && !s[i..].starts_with(&close) {
                blank(&mut out, s[i]);
                i += 1;
            }
            for _ in 0..close.len().min(s.len() - i) {
                out.push(' ');
                i += 1;
            }
        } else if s[i] == '"' {
            out.push(' ');
            i += 1;
            while i < s.len() && s[i] != '"' {
                let step = if s[i] == '\\' { 2 } else { 1 };
                for _ in 0..step.min(s.len() - i) {
                    blank(&mut out, s[i]);
                    i += 1;
                }
            }
            if i < s.len() {
                out.push(' ');
                i += 1;
            }
        } else if s[i] == '\'' && (next == '\\' || s.get(i + 2) == Some(&'\'')) {
            // A character, not a lifetime.
            out.push(' ');
            i += 1;
            while i < s.len() && s[i] != '\'' {
                let step = if s[i] == '\\' { 2 } else { 1 };
                for _ in 0..step.min(s.len() - i) {
                    blank(&mut out, s[i]);
                    i += 1;
                }
            }
            if i < s.len() {
                out.push(' ');
                i += 1;
            }
        } else {
            out.push(s[i]);
            i += 1;
        }
    }
    out
}

/// The number of `#` if a raw string starts at `i`.
fn raw_string_at(s: &[char], i: usize) -> Option<usize> {
    let mut j = i;
    if s.get(j) == Some(&'b') || s.get(j) == Some(&'c') {
        j += 1;
    }
    if s.get(j) != Some(&'r') {
        return None;
    }
    let hashes = s[j + 1..].iter().take_while(|&&c| c == '#').count();
    (s.get(j + 1 + hashes) == Some(&'"')).then_some(hashes)
}

/// Identifiers and punctuation, `::` as one token, each with its line.
fn tokens(code: &str) -> Vec<(String, usize)> {
    let s: Vec<char> = code.chars().collect();
    let (mut out, mut i, mut line) = (Vec::new(), 0, 1);
    while i < s.len() {
        if s[i] == '\n' {
            line += 1;
            i += 1;
        } else if s[i].is_whitespace() {
            i += 1;
        } else if s[i].is_alphanumeric() || s[i] == '_' {
            let start = i;
            while i < s.len() && (s[i].is_alphanumeric() || s[i] == '_') {
                i += 1;
            }
            out.push((s[start..i].iter().collect(), line));
        } else if s[i] == ':' && s.get(i + 1) == Some(&':') {
            out.push(("::".into(), line));
            i += 2;
        } else {
            out.push((s[i].to_string(), line));
            i += 1;
        }
    }
    out
}

/// First names after the `::` at `at`: one for a path, several for a group.
fn heads(t: &[(String, usize)], at: usize) -> Vec<(String, usize)> {
    match t.get(at) {
        Some((brace, _)) if brace == "{" => {
            let (mut out, mut depth, mut i, mut fresh) = (Vec::new(), 1, at + 1, true);
            while depth > 0 && i < t.len() {
                match t[i].0.as_str() {
                    "{" => depth += 1,
                    "}" => depth -= 1,
                    "," if depth == 1 => fresh = true,
                    _ if depth == 1 && fresh => {
                        out.push(t[i].clone());
                        fresh = false;
                    }
                    _ => {}
                }
                i += 1;
            }
            out
        }
        Some(head) => vec![head.clone()],
        None => Vec::new(),
    }
}

/// The module path of a source file below `src/`: `roce/requester.rs` is `[roce, requester]`.
fn module_path(file: &str) -> Vec<String> {
    let mut parts: Vec<String> = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib")) {
        parts.pop();
    }
    parts
}

/// Rooms that the text of `file` (relative to `src/`) names, by `crate::` or by enough `super::`, with lines.
fn imports(file: &str, source: &str, rooms: &BTreeSet<String>) -> Vec<(String, usize)> {
    let t = tokens(&code_only(source));
    let base = module_path(file).len();
    let (mut found, mut depth) = (Vec::new(), 0usize);
    // Depths of braces at which inline modules opened: `super` climbs out of these first.
    let mut inline: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < t.len() {
        match t[i].0.as_str() {
            "{" => {
                depth += 1;
                if i >= 2 && t[i - 2].0 == "mod" {
                    inline.push(depth);
                }
            }
            "}" => {
                if inline.last() == Some(&depth) {
                    inline.pop();
                }
                depth = depth.saturating_sub(1);
            }
            "crate" if t.get(i + 1).is_some_and(|n| n.0 == "::") => found.extend(heads(&t, i + 2)),
            "super" if t.get(i + 1).is_some_and(|n| n.0 == "::") => {
                let (mut up, mut j) = (1, i + 2);
                while t.get(j).is_some_and(|n| n.0 == "super") && t.get(j + 1).is_some_and(|n| n.0 == "::") {
                    up += 1;
                    j += 2;
                }
                if up >= base + inline.len() {
                    found.extend(heads(&t, j));
                }
                i = j - 1;
            }
            _ => {}
        }
        i += 1;
    }
    found.into_iter().map(|(name, line)| (if rooms.contains(&name) { name } else { "root".into() }, line)).collect()
}

/// Every broken rule of one file's text. `rooms` are the modules that exist.
fn violations(file: &str, source: &str, rooms: &BTreeSet<String>) -> Vec<String> {
    let mut out = Vec::new();
    let lines = source.lines().count();
    if lines > MAX_LINES && !GENERATED.contains(&file) {
        out.push(format!("src/{file}: {lines} lines, more than {MAX_LINES}"));
    }
    let own = module_path(file).first().cloned().unwrap_or_default();
    let table = ROOMS.iter().find(|r| r.name == own);
    if own == "bin" {
        let t = tokens(&code_only(source));
        for i in 0..t.len() {
            if t[i].0 == "planespray" && t.get(i + 1).is_some_and(|n| n.0 == "::") {
                for (name, line) in heads(&t, i + 2) {
                    if rooms.contains(&name) && !COMMAND_MAY.contains(&name.as_str()) {
                        out.push(format!("src/{file}:{line}: the command names planespray::{name}"));
                    }
                }
            }
        }
    } else if !own.is_empty() {
        match table {
            None => out.push(format!("src/{file}: room {own} is not in the table")),
            Some(table) => {
                for (name, line) in imports(file, source, rooms) {
                    if name != own && !table.may.contains(&name.as_str()) {
                        out.push(format!("src/{file}:{line}: {own} imports {name}"));
                    }
                }
            }
        }
    }
    let path = format!("src/{file}");
    let allowed = table.is_some_and(|r| r.unsafe_files.contains(&path.as_str()));
    let t = tokens(&code_only(source));
    for (i, (token, line)) in t.iter().enumerate() {
        let called = t.get(i + 1).is_some_and(|n| n.0 == "!");
        match token.as_str() {
            "unsafe" if !allowed => out.push(format!("src/{file}:{line}: unsafe outside the files that may hold it")),
            "todo" | "unimplemented" if called => out.push(format!("src/{file}:{line}: {token}!")),
            _ => {}
        }
    }
    out
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(dir).expect("src is readable").map(|e| e.expect("entry").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Top-level modules under `src/`, and those of the table.
fn rooms() -> BTreeSet<String> {
    let mut rooms: BTreeSet<String> = ROOMS.iter().map(|r| r.name.to_owned()).collect();
    for entry in fs::read_dir(root().join("src")).expect("src is readable") {
        let name = entry.expect("entry").file_name().to_string_lossy().trim_end_matches(".rs").to_owned();
        if name != "lib" && name != "bin" {
            rooms.insert(name);
        }
    }
    rooms
}

#[test]
fn every_source_file_keeps_the_rules() {
    let src = root().join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    assert!(files.len() > 10, "only {} files found below {}", files.len(), src.display());
    let rooms = rooms();
    let mut broken = Vec::new();
    for path in files {
        let name = path.strip_prefix(&src).expect("below src").to_string_lossy().replace('\\', "/");
        let source = fs::read_to_string(&path).expect("source is UTF-8");
        broken.extend(violations(&name, &source, &rooms));
    }
    assert!(broken.is_empty(), "ARCHITECTURE.md forbids:\n{}", broken.join("\n"));
}

#[test]
fn the_document_has_the_same_table() {
    for room in ROOMS {
        let src = root().join("src");
        let there = src.join(format!("{}.rs", room.name)).exists() || src.join(room.name).join("mod.rs").exists();
        assert!(there, "room {} has no source", room.name);
    }
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let rows: Vec<Vec<String>> = text
        .lines()
        .skip_while(|l| !l.starts_with("| room |"))
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .map(|l| l.trim_matches('|').split('|').map(|c| c.trim().to_owned()).collect())
        .collect();
    assert_eq!(rows.len(), ROOMS.len(), "rows of ARCHITECTURE.md and of this test");
    for (row, room) in rows.iter().zip(ROOMS) {
        let or = |list: &[&str], none: &str| if list.is_empty() { none.to_owned() } else { list.join(", ") };
        assert_eq!(row[0], room.name);
        assert_eq!(row[2], or(room.may, "nothing"), "imports of {}", room.name);
        assert_eq!(row[3], or(room.unsafe_files, "no"), "unsafe of {}", room.name);
    }
}

#[test]
fn the_table_goes_down_only() {
    for (i, room) in ROOMS.iter().enumerate() {
        for may in room.may.iter().filter(|&&m| m != "root") {
            let below = ROOMS.iter().position(|r| r.name == *may).unwrap_or_else(|| panic!("{may} has no row"));
            assert!(below < i, "{} imports {may}, which is not below it", room.name);
        }
    }
    let may = |room: &str, name: &str| ROOMS.iter().any(|r| r.name == room && r.may.contains(&name));
    assert!(!may("roce", "spray") && !may("spray", "roce") && !may("roce", "lanes"));
}

#[test]
fn a_planted_edge_is_found() {
    let rooms = rooms();
    let found = |file: &str, text: &str| violations(file, text, &rooms);
    for text in [
        "use crate::spray::Session;",
        "use crate::{time::Time, spray::{Session, Send}};",
        "use crate::{\n    time::Time,\n    spray,\n};",
        "fn f() -> crate::spray::Session { g() }",
        "use super::super::spray::Session;",
        "use super::{super::time::Time};\nuse super::super::{spray::Session};",
        "mod tests { use super::super::super::spray::Session; }",
        "pub(in crate::spray) fn f() {}",
    ] {
        let got = found("roce/requester.rs", text);
        assert!(got.iter().any(|v| v.ends_with("roce imports spray")), "{text:?} gave {got:?}");
    }
    assert_eq!(found("roce/mod.rs", "use super::spray::X;"), ["src/roce/mod.rs:1: roce imports spray"]);
    assert_eq!(found("spray/pick.rs", "\nuse crate::roce::Device;"), ["src/spray/pick.rs:2: spray imports roce"]);
    assert_eq!(found("wire/icrc.rs", "use crate::Error;"), ["src/wire/icrc.rs:1: wire imports root"]);
    assert_eq!(found("new/mod.rs", ""), ["src/new/mod.rs: room new is not in the table"]);
    assert_eq!(
        found("bin/planespray/main.rs", "use planespray::{Fabric, roce::Device};"),
        ["src/bin/planespray/main.rs:1: the command names planespray::roce"]
    );
}

#[test]
fn what_is_allowed_passes() {
    let rooms = rooms();
    for (file, text) in [
        ("roce/requester.rs", "use crate::time::Time; use crate::roce::Device; use super::responder::X;"),
        (
            "roce/requester.rs",
            "// use crate::spray::X;\n/* crate::spray /* nested */ */ const S: &str = \"crate::spray\";",
        ),
        ("roce/requester.rs", "const R: &str = r#\"crate::spray \" unsafe\"#; const C: char = '\"'; fn f<'a>() {}"),
        ("roce/mod.rs", "mod tests { use super::*; use super::super::time::Time; }"),
        ("mem/copy.rs", "unsafe fn f() {}"),
        ("roce/mod.rs", "#![forbid(unsafe_code)]"),
        ("lib.rs", "pub use api::Fabric; mod spray;"),
        ("bin/planespray/main.rs", "use planespray::{Fabric, class::Class};"),
    ] {
        assert_eq!(violations(file, text, &rooms), Vec::<String>::new(), "{file}: {text}");
    }
}

#[test]
fn other_planted_faults_are_found() {
    let rooms = rooms();
    let found = |file: &str, text: &str| violations(file, text, &rooms);
    assert_eq!(found("roce/mod.rs", "fn f() { unsafe { g() } }").len(), 1);
    assert_eq!(found("bin/planespray/main.rs", "unsafe fn f() {}").len(), 1);
    assert_eq!(found("roce/mod.rs", "fn f() {\n todo!()\n}"), ["src/roce/mod.rs:2: todo!"]);
    assert_eq!(found("roce/mod.rs", "fn f() { unimplemented!() }").len(), 1);
    assert_eq!(found("roce/mod.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
}
