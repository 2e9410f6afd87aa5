//! A picture, as the tests read it.

use std::fs;
use std::path::Path;

use roxmltree::Document;

/// The texts of a picture, tooltips included.
#[derive(Debug)]
pub(crate) struct Picture {
    /// The number of rows.
    pub(crate) rows: usize,
    pub(crate) texts: Vec<String>,
}

impl Picture {
    /// Reads a file, which must be well-formed.
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Picture {
        let content = fs::read_to_string(path).expect("the picture was written");
        let document = Document::parse(&content).expect("the picture is well-formed");
        let rows = document.descendants().filter(|node| node.attribute("class") == Some("row"));
        let texts = document.descendants().filter(roxmltree::Node::is_text);
        let texts = texts.filter_map(|node| node.text()).map(|text| text.trim().to_owned());
        Picture { rows: rows.count(), texts: texts.filter(|text| !text.is_empty()).collect() }
    }

    /// Returns the number of texts that contain `part`.
    pub(crate) fn count(&self, part: &str) -> usize {
        self.texts.iter().filter(|text| text.contains(part)).count()
    }

    #[track_caller]
    pub(crate) fn has(&self, part: &str) {
        assert!(self.count(part) > 0, "no {part:?} in {self:#?}");
    }
}
