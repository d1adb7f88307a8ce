/* See output_path.h. */
#include "tools/command/output_path.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/atomic_file.h"
#include "base/errmsg.h"
#include "base/stream_file.h"

int output_check_text(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e)
{
    return stream_file_is_standard(output) ? 0 : output_check(output, inputs, n_inputs, e);
}

int output_check(const char *output, const char *const *inputs, size_t n_inputs, struct errmsg *e)
{
    struct stat target, in;
    int r = atomic_file_check(output, e);

    if (r < 0 || stat(output, &target) < 0) /* a file that does not exist is no input */
        return r;

    for (size_t i = 0; i < n_inputs; i++)
        if (inputs[i] && stat(inputs[i], &in) == 0 && in.st_dev == target.st_dev &&
            in.st_ino == target.st_ino)
            return fail(e, -EINVAL, "%s is an input of this command: give the output another name", output);
    return 0;
}
