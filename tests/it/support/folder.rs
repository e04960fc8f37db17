//! Temporary folders of the tests.

use std::path::Path;

use tempfile::TempDir;

/// How much room a folder in memory must have: an ordinary container's has 64 MB.
const ROOM_KB: u64 = 1_000_000;

/// A temporary folder, in memory where the machine has room for it: the tests commit tens of
/// thousands of times, and none of them is about the disk. `TMPDIR` names another place.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    if std::env::var_os("TMPDIR").is_none() && has_room(memory) {
        return tempfile::tempdir_in(memory).expect("a folder in memory");
    }
    tempfile::tempdir().expect("a temporary folder")
}

/// Whether files can be made in memory at this place, by the size it was mounted with. Without a
/// size, the system gives it half of the memory.
fn has_room(memory: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let options = mounts.lines().find_map(|line| match *line.split(' ').collect::<Vec<_>>() {
        [_, place, "tmpfs", options, ..] if Path::new(place) == memory => Some(options),
        _ => None,
    });
    options.is_some_and(|options| {
        let size = options.split(',').find_map(|option| option.strip_prefix("size="));
        let kilobytes = size.map(|size| size.trim_end_matches('k').parse().unwrap_or(0));
        options.split(',').any(|option| option == "rw") && kilobytes.is_none_or(|kb| kb >= ROOM_KB)
    })
}
