//! Files as memory: models and weights are read where they lie.

use std::fs::File;
use std::io;
use std::path::Path;

use bytes::Bytes;
use memmap2::Mmap;

/// Maps a file read-only; clones and slices of the result share the mapping. An empty file gives empty bytes.
///
/// # Errors
/// If the file cannot be opened, is a directory, or cannot be mapped.
pub fn map_file(path: &Path) -> io::Result<Bytes> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
    }
    if metadata.len() == 0 {
        // Mapping zero bytes is an error on some systems.
        return Ok(Bytes::new());
    }
    // SAFETY: the mapping is private and read-only, and `Bytes` owns it for as long as any slice lives. Another process
    // that truncates the file meanwhile can make a later read fault, as for every mapped model file; forge-cc itself
    // never writes to a file that it has mapped (outputs are written to a new file and renamed).
    let map = unsafe { Mmap::map(&file)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use super::map_file;

    #[test]
    fn maps_what_the_file_holds() {
        let path = std::env::temp_dir().join(format!("forge-mapped-{}", std::process::id()));
        std::fs::write(&path, b"weights").unwrap();
        let bytes = map_file(&path).unwrap();
        assert_eq!(&bytes[2..4], b"ig");
        std::fs::write(&path, b"").unwrap();
        assert!(map_file(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
        assert!(map_file(&path).is_err());
        assert!(map_file(&std::env::temp_dir()).is_err());
    }
}
