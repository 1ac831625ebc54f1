//! `load_module`: nothing is loaded. Packages of nginx load modules that most configurations never use, so that a
//! module which is not built in is an error only where one of its directives is.

/// Dynamic modules whose directives are in the grammar table or will be.
const BUILT_IN: [&[u8]; 10] = [
    b"ngx_stream_module",
    b"ngx_mail_module",
    b"ngx_http_brotli_filter_module",
    b"ngx_http_brotli_static_module",
    b"ngx_http_zstd_filter_module",
    b"ngx_http_zstd_static_module",
    b"ngx_http_v3_module",
    b"ngx_http_headers_more_filter_module",
    b"ngx_http_set_misc_module",
    b"ndk_http_module",
];

const LEGACY_GEOIP: &str = "the legacy GeoIP databases ended in 2019: put the networks of a newer one into a file that \"geo\" includes";
const MMDB: &str =
    "mmdb databases are not read yet: put the networks of the CSV edition into a file that \"geo\" includes";

/// Modules people load that will not come, with the reason.
const ABSENT: [(&[u8], &str); 12] = [
    (b"ngx_http_geoip_module", LEGACY_GEOIP),
    (b"ngx_stream_geoip_module", LEGACY_GEOIP),
    (b"ngx_http_geoip2_module", MMDB),
    (b"ngx_stream_geoip2_module", MMDB),
    (b"ngx_http_perl_module", "no Perl interpreter is embedded"),
    (b"ngx_http_xslt_filter_module", "no XSLT processor is embedded"),
    (b"ngx_http_image_filter_module", "no image library is embedded"),
    (b"ngx_http_lua_module", "no Lua interpreter is embedded"),
    (b"ngx_stream_lua_module", "no Lua interpreter is embedded"),
    (b"ngx_http_js_module", "no JavaScript interpreter is embedded"),
    (b"ngx_stream_js_module", "no JavaScript interpreter is embedded"),
    (b"ngx_google_perftools_module", "no gperftools profiler is linked"),
];

/// Checks that the module of a file is built in. The error is the reason why not.
pub(super) fn check(file: &[u8]) -> Result<(), &'static str> {
    let base = file.rsplit(|&b| b == b'/').next().unwrap_or_default();
    let name = base.strip_suffix(b".so").unwrap_or(base);
    if BUILT_IN.contains(&name) {
        return Ok(());
    }
    let absent = ABSENT.iter().find(|(module, _)| *module == name);
    Err(absent.map_or("modules of nginx cannot be loaded, and none of this name is built in", |(_, why)| why))
}
