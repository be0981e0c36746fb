//! Read-only memory maps.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

/// The bytes of a file, mapped read only; they stay valid while any clone or slice lives, also if the file is renamed or
/// unlinked.
///
/// # Errors
/// The file can't be opened or mapped.
pub fn map_file(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    // An empty mapping is an error to the system.
    if file.metadata()?.len() == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read only. Truncating the file under a running process is outside what a program
    // can guard against (as for a shared library); plans and weights are replaced by rename, never edited in place.
    let map = unsafe { Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_outlives_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"weights").unwrap();
        let bytes = map_file(file.path()).unwrap();
        file.close().unwrap();
        assert_eq!(&bytes.slice(2..)[..], b"ights");
    }

    #[test]
    fn an_empty_file_is_empty() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(map_file(file.path()).unwrap().is_empty());
        assert!(map_file(Path::new("no/such/file")).is_err());
    }
}
