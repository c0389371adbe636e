//! What several test files need.

/// Says that a test was skipped and why, for example because "tshark is not installed". Panics where the
/// environment has `CI=true`: there everything is installed, and a skipped test would pass for a good one.
pub(crate) fn skipped(why: &str) {
    let ci = std::env::var("CI").is_ok_and(|v| v == "true");
    assert!(!ci, "would be skipped, because {why}; under CI nothing is");
    eprintln!("skipped, because {why}");
}
