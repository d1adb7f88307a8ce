/*
 * What --check-config says beyond the settings themselves: whether the files, folders and sockets that they
 * name let kvcobrad start. Nothing is created, changed or locked, so a running daemon is not disturbed.
 *
 * Root checks as the user who owns the state folder, since kvcobrad runs as this user.
 */
#pragma once

#include <stdbool.h>

#include "daemon/config/config_warnings.h"

struct config;
struct errmsg;

/**
 * start_check() - look at what the settings name
 * @c:             checked (config_check())
 * @makes_folders: --user, which makes the folders of its sockets and of its state
 * @warn:          gets what a start would tolerate, such as a disk tier that would be off
 *
 * Return: 0; errno with the sentence with which a start would end.
 */
int start_check(const struct config *c, bool makes_folders, config_warn_fn *warn, void *ctx,
                struct errmsg *e);
