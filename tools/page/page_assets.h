/* The files of pages; assets.py writes page_assets.c. */
#pragma once

#include <stddef.h>

#include "tools/page/page.h"

/* UTF-8, not terminated. */
struct page_asset {
    const char *text;
    size_t n;
};

extern const struct page_asset page_style;
extern const struct page_asset page_d3; /* with its licence; empty: it was not installed */
extern const struct page_asset page_common;
extern const struct page_asset page_templates[PAGE_KINDS];
extern const struct page_asset page_scripts[PAGE_KINDS];

/* "'sha256-…' …": the sources that the content security policy of a page allows. */
extern const char *const page_script_hashes[PAGE_KINDS];
