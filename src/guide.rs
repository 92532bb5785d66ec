//! The pages of `docs/`, as part of this documentation, so that their examples are run.

#[doc = include_str!("../docs/architecture.md")]
pub mod architecture {}

#[doc = include_str!("../docs/algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("../docs/guarantees.md")]
pub mod guarantees {}

#[doc = include_str!("../docs/testing.md")]
pub mod testing {}

// The examples of the read-me files are run like those of any page.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(doctest)]
#[doc = include_str!("../README.zh-CN.md")]
mod readme_zh {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// What a translation leaves as it is: commands and names, figures, files, and how long the tables are.
    fn untranslated(page: &str) -> (BTreeSet<&str>, BTreeSet<&str>, BTreeSet<&str>, usize) {
        let prose = page.lines().filter(|line| !line.starts_with("```"));
        let names = prose.flat_map(|line| line.split('`').skip(1).step_by(2));
        let figures =
            page.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == ',')).map(|n| n.trim_matches(['.', ',']));
        let files =
            page.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter(|file| file.contains('/'));
        let rows = page.lines().filter(|line| line.starts_with('|')).count();
        (names.collect(), figures.filter(|n| !n.is_empty()).collect(), files.collect(), rows)
    }

    #[test]
    fn the_chinese_read_me_has_the_commands_the_figures_the_files_and_the_tables_of_the_other() {
        let (english, chinese) = (include_str!("../README.md"), include_str!("../README.zh-CN.md"));
        let (right, ours) = (untranslated(english), untranslated(chinese));
        assert_eq!(right.0, ours.0, "commands and names");
        assert_eq!(right.1, ours.1, "figures");
        assert_eq!(right.2, ours.2, "files");
        assert_eq!(right.3, ours.3, "rows of tables");
    }
}
