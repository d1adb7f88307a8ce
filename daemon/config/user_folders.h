/*
 * The folders of kvcobrad --user: a daemon that an ordinary user runs for programs of its own, without
 * systemd and without root. Sockets are in the folder of proto/user_folder.h, where kvc_socket_path() looks,
 * the state in $XDG_STATE_HOME/kvcobra/ (~/.local/state), the configuration in
 * $XDG_CONFIG_HOME/kvcobra/kvcobrad.conf (~/.config).
 */
#pragma once

struct config;
struct errmsg;

/**
 * user_folders_apply() - set the defaults of --user: sockets and their mode, the state folder, the
 * pool, and kvcobra-mover if it lies beside this program or in ../libexec
 * @ret_file: path of the configuration file, which need not exist; the caller frees
 *
 * Return: 0; -EINVAL: the environment has no such folder; -ENOMEM.
 */
int user_folders_apply(struct config *c, char **ret_file, struct errmsg *e);

/* Creates the folders of the sockets and of the state, with mode 0700. Return: 0; errno of a folder. */
int user_folders_create(const struct config *c, struct errmsg *e);
