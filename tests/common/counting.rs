//! An allocator that counts. A test file that wants it says `#[path = "common/counting.rs"] mod counting;`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    /// Whether this is the process's first thread, once known.
    static FIRST: Cell<Option<bool>> = const { Cell::new(None) };
}

static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

fn count() {
    HERE.with(|c| c.set(c.get() + 1));
    let first = FIRST.get().unwrap_or_else(|| {
        let first = nix::unistd::gettid() == nix::unistd::getpid();
        FIRST.set(Some(first));
        first
    });
    if !first {
        EVERYWHERE.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches an atomic and thread-local values
// without destructors, and asks for thread numbers, which allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while `work` runs: of this thread, and of all threads of the process but its first, in which the harness
/// says that a test takes long.
pub(crate) fn allocations(work: impl FnOnce()) -> (u64, u64) {
    let (here, everywhere) = (HERE.with(Cell::get), EVERYWHERE.load(Ordering::SeqCst));
    work();
    (HERE.with(Cell::get) - here, EVERYWHERE.load(Ordering::SeqCst) - everywhere)
}
