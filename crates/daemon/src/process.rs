//! Child processes that never outlive the daemon.
//!
//! A child is in a process group of its own, so that a Ctrl-C in the terminal reaches the daemon alone, and the kernel
//! signals it when the daemon dies, however that happens. The kernel ties this to the *thread* that started the child:
//! call [`prepare`]d commands from threads that live as long as the daemon only.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::process::{Child, Command};

/// Ties a command's process to this one: `on_death` is sent to it when the starting thread ends.
pub(crate) fn bind(command: &mut Command, on_death: i32) {
    command.process_group(0).kill_on_drop(true);
    let parent = std::process::id();
    let tie = move || tie_to(parent, on_death);
    // SAFETY: the closure calls only async-signal-safe functions and allocates nothing.
    #[allow(unsafe_code, reason = "the kernel's parent-death signal can only be set in the child itself")]
    unsafe {
        command.pre_exec(tie);
    }
}

fn tie_to(parent: u32, on_death: i32) -> io::Result<()> {
    // SAFETY: both calls take and return plain integers.
    #[allow(unsafe_code, reason = "no safe wrapper is among the dependencies")]
    let (result, current) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, on_death), libc::getppid()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // The parent may have died before the call above.
    if u32::try_from(current) != Ok(parent) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Signals a whole process group.
pub(crate) fn signal_group(process_id: u32, signal: i32) {
    let Ok(group) = i32::try_from(process_id) else { return };
    // SAFETY: plain integers; a group that is gone is an error that nobody needs.
    #[allow(unsafe_code, reason = "no safe wrapper is among the dependencies")]
    unsafe {
        libc::kill(-group, signal);
    }
}

/// Waits for a child that is about to end by itself; kills its group after `grace`, and whatever it left behind. How it
/// ended, if by itself.
pub(crate) async fn reap(child: &mut Child, grace: Duration) -> Option<ExitStatus> {
    let process_id = child.id();
    let ended = tokio::time::timeout(grace, child.wait()).await;
    // The group's id is not given to another process while a member lives; without members this does nothing.
    if let Some(process_id) = process_id {
        signal_group(process_id, libc::SIGKILL);
    }
    if ended.is_err() {
        let _ = child.wait().await;
    }
    ended.ok()?.ok()
}
