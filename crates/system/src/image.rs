//! The program image: what the kernel maps for the program itself, computed from its own headers.
//!
//! ```text
//! PT_LOAD r--   │ headers, constants │
//! PT_LOAD r-x   │ code               │  file-backed: whole pages from p_vaddr to p_vaddr+p_filesz
//! PT_LOAD rw-   │ relocated, data    │
//!               │ zero-initialised   │  anonymous: the pages from there to p_vaddr+p_memsz
//! ```
//!
//! In a static program these are all the file-backed mappings of the process. The kernel's own
//! pages (`[vdso]`, `[vvar]`) belong to no file and are shared by all processes; they are not in
//! these figures. A program with shared libraries has more, which `mapped_files_bytes` counts.
//!
//! Believes: the auxiliary vector; `/proc/self/maps`. Must not know: any budget.

use crate::error::SystemError;
use crate::facts::find_line;
use crate::process::mapping_range;
#[cfg(target_os = "linux")]
use crate::sys;

/// The program's own mappings, in bytes, whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image {
    /// Pages that come from the program file: headers, code, constants, initialised data.
    pub file_backed_bytes: u64,
    /// Pages of zero-initialised data behind them.
    pub zero_initialised_bytes: u64,
}

impl Image {
    /// All of it.
    pub fn total_bytes(&self) -> u64 {
        self.file_backed_bytes + self.zero_initialised_bytes
    }
}

/// The image of the running program, from the headers that the kernel loaded it by.
///
/// # Errors
/// `Fact` when the kernel passed no headers.
#[cfg(target_os = "linux")]
pub fn image() -> Result<Image, SystemError> {
    Ok(image_of(program_headers()?, sys::page_bytes() as u64))
}

/// Makes the whole image resident, so that later no instruction or constant is read from storage:
/// for a process that may not lock its memory. Contents do not change.
///
/// # Errors
/// `Fact` when the kernel passed no headers; `Call` when a kernel before 5.14 cannot populate.
#[cfg(target_os = "linux")]
pub fn prefault_image() -> Result<(), SystemError> {
    let headers = program_headers()?;
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR);
    let start = headers.as_ptr().addr();
    // Where the program was loaded, less where its headers say.
    let bias = own.map_or(0, |header| start - header.p_vaddr as usize);
    let read_only = headers.iter().find(|header| header.p_type == libc::PT_GNU_RELRO);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let begin = header.p_vaddr as usize;
        let end = begin + header.p_memsz as usize;
        if header.p_flags & libc::PF_W == 0 {
            populate(bias + begin, bias + end, sys::Advice::PopulateRead)?;
            continue;
        }
        // The front of a writable segment is made read-only once its addresses are filled in.
        let middle = read_only.map_or(begin, |header| {
            let end = (header.p_vaddr + header.p_memsz) as usize;
            (end / sys::page_bytes() * sys::page_bytes()).max(begin)
        });
        let middle = if middle > end { begin } else { middle };
        populate(bias + begin, bias + middle, sys::Advice::PopulateRead)?;
        populate(bias + middle, bias + end, sys::Advice::PopulateWrite)?;
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn populate(begin: usize, end: usize, advice: sys::Advice) -> Result<(), SystemError> {
    let page_bytes = sys::page_bytes();
    let begin = begin / page_bytes * page_bytes;
    let len_bytes = end.next_multiple_of(page_bytes).saturating_sub(begin);
    if len_bytes == 0 || end <= begin {
        return Ok(());
    }
    let base = std::ptr::with_exposed_provenance_mut::<u8>(begin);
    // SAFETY: the range is one segment of this program, mapped as long as the process; making
    // pages resident changes no contents.
    unsafe { sys::advise(base, len_bytes, advice) }
}

/// The program headers as they stand in memory.
#[cfg(target_os = "linux")]
fn program_headers() -> Result<&'static [libc::Elf64_Phdr], SystemError> {
    let missing = SystemError::Fact { file: "the auxiliary vector", what: "program headers" };
    // SAFETY: getauxval reads a table that the kernel filled before the program began.
    let (address, count, len_bytes) = unsafe {
        (
            libc::getauxval(libc::AT_PHDR),
            libc::getauxval(libc::AT_PHNUM),
            libc::getauxval(libc::AT_PHENT),
        )
    };
    let is_expected = len_bytes as usize == size_of::<libc::Elf64_Phdr>();
    if address == 0 || count == 0 || count > 128 || !is_expected {
        return Err(missing);
    }
    let first = std::ptr::with_exposed_provenance::<libc::Elf64_Phdr>(address as usize);
    // SAFETY: the kernel says that `count` headers of this size stand at `address`, inside the
    // program's first mapping, which is read-only and stays as long as the process.
    Ok(unsafe { std::slice::from_raw_parts(first, count as usize) })
}

#[cfg(target_os = "linux")]
fn image_of(headers: &[libc::Elf64_Phdr], page_bytes: u64) -> Image {
    let mut image = Image { file_backed_bytes: 0, zero_initialised_bytes: 0 };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = header.p_vaddr / page_bytes * page_bytes;
        let round_up = |end: u64| end.next_multiple_of(page_bytes);
        let file_end = match header.p_filesz {
            0 => start,
            len => round_up(header.p_vaddr + len),
        };
        let end = round_up(header.p_vaddr + header.p_memsz).max(file_end);
        image.file_backed_bytes += file_end - start;
        image.zero_initialised_bytes += end - file_end;
    }
    image
}

/// Not known here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn image() -> Result<Image, SystemError> {
    Err(SystemError::Unsupported { what: "the program's own headers" })
}

/// Not known here.
///
/// # Errors
/// Always `Unsupported`.
#[cfg(not(target_os = "linux"))]
pub fn prefault_image() -> Result<(), SystemError> {
    Err(SystemError::Unsupported { what: "the program's own headers" })
}

/// Bytes of every mapping of this process that a file backs, as `/proc/self/maps` lists them.
///
/// # Errors
/// `Fact` when the list cannot be read.
pub fn mapped_files_bytes() -> Result<u64, SystemError> {
    let mut total = 0;
    let broken = find_line("/proc/self/maps", |line| match file_mapping_bytes(line) {
        Some(len_bytes) => {
            total += len_bytes;
            None
        }
        None => Some(()),
    });
    match broken {
        None if total > 0 => Ok(total),
        None | Some(()) => {
            Err(SystemError::Fact { file: "/proc/self/maps", what: "mappings of files" })
        }
    }
}

/// `start-end access offset device inode path`: the length if there is an inode, else 0.
fn file_mapping_bytes(line: &str) -> Option<u64> {
    let (start, end) = mapping_range(line)?;
    let inode = line.split_ascii_whitespace().nth(4)?;
    Some(if inode == "0" { 0 } else { (end - start) as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_mappings_agree() {
        let image = image().unwrap();
        let mapped = mapped_files_bytes().unwrap();
        if cfg!(target_feature = "crt-static") {
            assert_eq!(image.file_backed_bytes, mapped);
        } else {
            assert!(image.file_backed_bytes <= mapped, "shared libraries come on top");
        }
        assert!(image.total_bytes() > 100_000);
    }

    #[test]
    fn the_image_can_be_made_resident() {
        prefault_image().unwrap();
        let resident = crate::process::memory_facts().unwrap().file_bytes;
        assert!(resident > image().unwrap().file_backed_bytes / 2, "{resident}");
    }

    #[test]
    fn only_mappings_of_files_count() {
        let line = "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/x";
        assert_eq!(file_mapping_bytes(line), Some(0x52000));
        let line = "00e03000-00e24000 rw-p 00000000 00:00 0           [heap]";
        assert_eq!(file_mapping_bytes(line), Some(0));
        assert_eq!(file_mapping_bytes("nonsense"), None);
    }
}
