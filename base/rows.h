/*
 * Rows of a table that no list names: each stands in the file of what it describes, and the linker makes one
 * array of pointers to them.
 *
 *     extern const struct command *const __start_kvc_commands[], *const __stop_kvc_commands[];
 *
 *     ROW(struct command, "kvc_commands", cmd_eval) = {.name = "eval", ...};
 *
 * A pointer to the row goes into the section, as systemd's programs collect their verbs. They are pointers,
 * since structs would have gaps between files. The linker keeps the section with --gc-sections, because these
 * names refer to it, and sanitizers put nothing between variables of a section with a name. A program must
 * link the library of the rows as a whole: nothing else names them. rows.py finds the files for meson.build.
 */
#pragma once

/* GNU's linker keeps a section whose __start_ is named. LLVM's, which builds the wheel, needs this. */
#if defined(__has_attribute) && __has_attribute(retain)
#define ROW_KEPT(kept_in) __attribute__((used, retain, section(kept_in)))
#else
#define ROW_KEPT(kept_in) __attribute__((used, section(kept_in)))
#endif

#define ROW(type, kept_in, row)                                                                              \
    static const type row;                                                                                   \
    ROW_KEPT(kept_in) static const type *const row##_row = &row;                                             \
    static const type row
