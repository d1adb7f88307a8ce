/*
 * The settings in effect, as a file that kvcobrad reads again: kvcobrad --print-config. Defaults that follow
 * from other settings, such as quota-bytes, are printed as the numbers that they became.
 */
#pragma once

#include <stdio.h>

struct config;

/* @c: checked and resolved. */
void config_print(const struct config *c, FILE *f);
