/*
 * Children that act as another user than the test. Only root can change its user, so such cases are skipped
 * for other users.
 *
 * The other user may be unable to read anything below the checkout: home folders have mode 0700. A child
 * therefore opens what it needs from there, libraries above all, before it calls other_user_become().
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

enum { OTHER_USER_UID = 65534 };

/* False if this process is not root's; the running case is then marked as skipped. */
bool other_user_is_possible(void);

/* Gives up root's user, group and supplementary groups. The process still dies with its parent. Asserts. */
void other_user_become(uid_t uid);
