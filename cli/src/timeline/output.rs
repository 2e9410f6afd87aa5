//! [`OutputFile`]: a file that is opened before the observation, and written after it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use svg::Document;
use tempfile::NamedTempFile;

use crate::failure::{Code, Failure, Result};

/// A writable file. An existing file keeps its content until the write.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    file: File,
    /// The file is new and empty: it is removed unless it is written.
    is_new: bool,
}

impl OutputFile {
    /// Opens or creates the file.
    pub(crate) fn open(path: &Path) -> Result<OutputFile> {
        let (opened, is_new) = match OpenOptions::new().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (OpenOptions::new().write(true).open(path), false)
            }
            opened => (opened, true),
        };
        let file = opened.map_err(|error| unwritable(path, &error))?;
        Ok(OutputFile { path: path.to_owned(), file, is_new })
    }

    /// Replaces the content of the file by the picture.
    pub(crate) fn write(mut self, picture: &Document) -> Result<()> {
        self.replace(picture).map_err(|error| unwritable(&self.path, &error))?;
        self.is_new = false;
        Ok(())
    }

    /// Writes a file beside the old one, which it replaces only once it is complete.
    fn replace(&mut self, picture: &Document) -> io::Result<()> {
        let text = format!("{picture}\n");
        let old = self.file.metadata()?;
        // A pipe or a terminal has no content to keep.
        if !old.is_file() {
            return self.file.write_all(text.as_bytes());
        }
        // The target of a symbolic link.
        let path = fs::canonicalize(&self.path)?;
        let mut neighbour = match NamedTempFile::new_in(path.parent().unwrap_or(Path::new("/"))) {
            // The folder takes no new file: the file itself has to be written.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                self.file.set_len(0)?;
                return self.file.write_all(text.as_bytes());
            }
            made => made?,
        };
        neighbour.write_all(text.as_bytes())?;
        neighbour.as_file().set_permissions(old.permissions())?;
        neighbour.persist(path)?;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_new {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let advice = "name a file in a folder that exists and is writable";
    Failure::new(
        Code::CannotCreate,
        format!("{} cannot be written: {error}; {advice}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_file_keeps_its_content_until_the_write() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        fs::write(&path, "long before ".repeat(1000)).expect("the file is written");
        drop(OutputFile::open(&path).expect("the file opens"));
        assert!(fs::read_to_string(&path).expect("a file").starts_with("long before"));
        let output = OutputFile::open(&path).expect("the file opens");
        output.write(&Document::new()).expect("the file is written");
        let text = fs::read_to_string(&path).expect("a file");
        assert_eq!(text, "<svg xmlns=\"http://www.w3.org/2000/svg\"/>\n");
    }

    #[test]
    fn a_new_file_without_a_picture_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.svg");
        let output = OutputFile::open(&path).expect("the file opens");
        assert!(path.exists());
        drop(output);
        assert!(!path.exists());
    }

    #[test]
    fn a_file_in_no_folder_is_an_error_with_advice() {
        let folder = tempfile::tempdir().expect("a folder");
        for path in [folder.path().join("none/a.svg"), folder.path().to_owned()] {
            let failure = OutputFile::open(&path).expect_err("no file");
            assert_eq!(failure.code, Code::CannotCreate);
            let text = failure.to_string();
            assert!(text.contains("cannot be written") && text.contains("name a file"), "{text}");
        }
    }
}
