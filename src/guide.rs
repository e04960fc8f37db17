//! The guide, one page for each subject. The pages are also `docs/*.md` in the repository.
//!
//! The Rust examples of the pages are compiled and run with the tests.

/// A page's text. Pages link to each other by `[text][page]`. The first definition of a label
/// counts in Markdown: the definitions here lead to the page's module, those at the end of a page
/// to the file beside it in the repository.
macro_rules! page {
    ($file:literal) => {
        concat!(
            "[agents]: crate::guide::agents\n",
            "[async]: crate::guide::async_applications\n",
            "[cancel-and-revise]: crate::guide::cancel_and_revise\n",
            "[guarantees]: crate::guide::guarantees\n",
            "[handlers]: crate::guide::handlers\n",
            "[http]: crate::guide::http\n",
            "[inbox]: crate::guide::inbox\n",
            "[relay-toml]: crate::guide::relay_toml\n",
            "[sql]: crate::guide::sql\n",
            "[testing]: crate::guide::testing\n\n",
            include_str!(concat!("../docs/", $file)),
        )
    };
}

#[doc = page!("guarantees.md")]
pub mod guarantees {}

#[doc = page!("handlers.md")]
pub mod handlers {}

#[cfg_attr(feature = "http", doc = page!("http.md"))]
#[cfg_attr(not(feature = "http"), doc = "This page needs the feature `http`.")]
pub mod http {}

#[doc = page!("relay-toml.md")]
pub mod relay_toml {}

#[doc = page!("sql.md")]
pub mod sql {}

#[doc = page!("async.md")]
pub mod async_applications {}

#[doc = page!("cancel-and-revise.md")]
pub mod cancel_and_revise {}

#[doc = page!("inbox.md")]
pub mod inbox {}

#[doc = page!("agents.md")]
pub mod agents {}

#[doc = page!("testing.md")]
pub mod testing {}

#[doc = page!("platforms.md")]
pub mod platforms {}

#[doc = page!("operations.md")]
pub mod operations {}

#[doc = page!("comparison.md")]
pub mod comparison {}

#[doc = page!("benchmarks.md")]
pub mod benchmarks {}
