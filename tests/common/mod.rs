//! What several test files need.

/// Reports that a test was skipped because `what` (for example "tshark is not installed"); fails instead where
/// the environment says `CI=true`, since there everything is installed and a skip would hide a failure.
///
/// Read it with `return skipped(...)`.
pub fn skipped(what: &str) {
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "would be skipped, because {what}; under CI nothing is");
    eprintln!("skipped, because {what}");
}
