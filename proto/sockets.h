/*
 * Names and folders of kvcobrad's sockets. Used by the library, which looks for them (kvc_socket_path()), and
 * by the daemon, whose defaults they are. The units of systemd/ have the same paths.
 */
#pragma once

#define SOCKET_CLIENTS "kvcobra.sock"
#define SOCKET_OPERATORS "operator.sock"

#define SOCKET_SYSTEM_FOLDER "/run/kvcobra"
#define SOCKET_USER_FOLDER "kvcobra" /* for kvcobrad --user: user_folder.h */
