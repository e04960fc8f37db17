//! stub
pub(crate) fn check_headers(_t: &[(String, String)]) -> crate::error::Result<()> {
    Ok(())
}
