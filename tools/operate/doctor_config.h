/* The check of `kvcobra doctor` that reads the daemon's configuration as the next start would. */
#pragma once

#include "tools/operate/doctor_check.h"

#define DOCTOR_CONFIG_PATH "/etc/kvcobra/kvcobrad.conf" /* of the unit */

/**
 * doctor_check_config() - run `kvcobrad --check-config` and add a finding for each line that it prints
 * @path: NULL: DOCTOR_CONFIG_PATH, and nothing is added if there is no such file or no kvcobrad
 */
void doctor_check_config(struct doctor *d, const char *path);
