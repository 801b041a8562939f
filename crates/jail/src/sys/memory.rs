//! Memory that a long-lived process needs only while it starts.
#![allow(
    unsafe_code,
    reason = "the addresses of our own program have no safe form, and this is their one place"
)]

use std::ffi::{c_int, c_void};

/// Unmaps the pages of our own program and returns free memory of the allocator to the system.
///
/// What a start touches is mapped until the process ends: the relocations, which nothing reads a
/// second time, and the code that reads command line and configuration. Pages that are used again
/// are mapped again, from the kernel's cache.
pub fn release_start_memory() {
    // SAFETY: the function has the type that dl_iterate_phdr(3) calls, and ignores its data.
    unsafe { libc::dl_iterate_phdr(Some(release_segments), std::ptr::null_mut()) };
    // SAFETY: malloc_trim(3) locks the allocator and may be called from any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// Unmaps the segments of one object that are never written. Called for the program, which is the
/// first object; its result ends the iteration.
extern "C" fn release_segments(
    object: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a description that is valid during the call, with this many headers.
    let (base, headers) = unsafe {
        let object = &*object;
        (object.dlpi_addr, std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()))
    };
    // SAFETY: sysconf(3) only returns a number.
    let Ok(page_bytes) = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else {
        return 1;
    };
    for header in headers {
        // What is written has its contents nowhere else, also where it was made read-only later.
        if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W != 0 {
            continue;
        }
        let offset = header.p_vaddr % page_bytes;
        let start = (base + header.p_vaddr - offset) as *mut c_void;
        let Ok(length) = usize::try_from(header.p_memsz + offset) else { continue };
        // SAFETY: segments share no page, so these hold nothing but the contents of the file, and
        // the next use of one maps it again from there. A failure leaves them mapped.
        unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
    }
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the resident kilobytes of the first mapping of this program, which is never written.
    fn resident_kilobytes() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::fs::read_link("/proc/self/exe").unwrap();
        let mut lines = maps.lines().skip_while(|line| !line.ends_with(program.to_str().unwrap()));
        let line = lines.find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// That the test goes on to run is the other half of it.
    #[test]
    fn what_only_the_start_needs_is_released() {
        let before = resident_kilobytes();
        release_start_memory();
        assert!(resident_kilobytes() < before, "nothing reads the relocations again");
    }
}
