/* A driver from before memory could be shared by descriptors: it has the call
 * that starts it and none that we need. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}
