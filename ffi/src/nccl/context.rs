//! The plugin in its process: when it begins and ends, and what keeps a failure of ours from becoming the caller's.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;

use super::abi::{INTERNAL_ERROR, SUCCESS, SYSTEM_ERROR};
use super::core::Core;
use super::log;

static PLUGIN: Mutex<Plugin> = Mutex::new(Plugin { core: None, contexts: 0, resident: false });

struct Plugin {
    core: Option<Arc<Core>>,
    /// Communicators that were initialized and not finalized.
    contexts: usize,
    /// A version without `finalize` was initialized: the core stays.
    resident: bool,
}

/// What `init` gave to one communicator, from version 11.
pub(super) struct Context {
    /// What the communicator's calls go to stays until it is finalized.
    _core: Arc<Core>,
}

/// Runs the body of an entry: whatever happens in it, the caller gets a code.
pub(super) fn guard(entry: &'static str, body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => {
            let _ = catch_unwind(|| log::warn(&format!("a fault of planespray in {entry}; please report it")));
            INTERNAL_ERROR
        }
    }
}

/// Logs why and gives the code.
#[cold]
pub(super) fn fail(code: c_int, why: &str) -> c_int {
    log::warn(why);
    code
}

/// A version without `finalize` begins.
pub(super) fn init_resident() -> Result<(), c_int> {
    let mut plugin = PLUGIN.lock();
    plugin.open(-1)?;
    plugin.resident = true;
    Ok(())
}

/// A communicator begins.
pub(super) fn init(traffic_class: i32) -> Result<Box<Context>, c_int> {
    let mut plugin = PLUGIN.lock();
    let core = plugin.open(traffic_class)?;
    plugin.contexts += 1;
    Ok(Box::new(Context { _core: core }))
}

/// A communicator ends; with the last one goes everything, and our thread is joined.
pub(super) fn finalize(context: Box<Context>) {
    let mut plugin = PLUGIN.lock();
    plugin.contexts = plugin.contexts.saturating_sub(1);
    let last = plugin.contexts == 0 && !plugin.resident;
    let core = if last { plugin.core.take() } else { None };
    drop(plugin);
    if let Some(core) = core {
        core.abandon();
    }
    drop(context);
}

/// The process's core.
///
/// # Errors
/// `init` was not called, or its process forked since.
pub(super) fn core() -> Result<Arc<Core>, c_int> {
    let plugin = PLUGIN.lock();
    match &plugin.core {
        Some(core) if core.process == std::process::id() => Ok(core.clone()),
        Some(_) => Err(fail(INTERNAL_ERROR, "the process forked after the plugin's init; init it again in the child")),
        None => Err(fail(INTERNAL_ERROR, "the plugin was not initialized")),
    }
}

impl Plugin {
    fn open(&mut self, traffic_class: i32) -> Result<Arc<Core>, c_int> {
        if let Some(core) = self.core.take_if(|core| core.process != std::process::id()) {
            // A forked child has none of the parent's threads: nothing of it can be torn down here.
            Box::leak(Box::new(core));
            self.contexts = 0;
            self.resident = false;
        }
        if let Some(core) = &self.core {
            core.want_traffic_class(traffic_class);
            return Ok(core.clone());
        }
        match Core::open(traffic_class) {
            Ok(core) => Ok(self.core.insert(Arc::new(core)).clone()),
            Err(why) => Err(fail(SYSTEM_ERROR, &why)),
        }
    }
}
