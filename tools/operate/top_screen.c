/* The terminal of `kvcobra top`; see top_screen.h. */
#include "tools/operate/top_screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "tools/command/clock.h"

static const int quit_signals[] = {SIGINT, SIGTERM, SIGHUP};
static const int all_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGWINCH};

enum {
    N_QUIT_SIGNALS = sizeof(quit_signals) / sizeof(quit_signals[0]),
    N_SIGNALS = sizeof(all_signals) / sizeof(all_signals[0]),
};

static struct {
    bool entered;
    struct termios termios;
    struct sigaction actions[N_SIGNALS];
    sigset_t mask; /* before screen_enter(): signals are only delivered during screen_wait() */
} saved;

static volatile sig_atomic_t received[NSIG];

static void top_screen_on_signal(int signal)
{
    received[signal] = 1;
}

static bool top_screen_write_all(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t done = write(STDOUT_FILENO, text, n);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        text += done;
        n -= (size_t) done;
    }
    return true;
}

static bool top_screen_write_text(const char *text)
{
    return top_screen_write_all(text, strlen(text));
}

bool screen_is_possible(void)
{
    const char *term = getenv("TERM");

    return term && *term && strcmp(term, "dumb") != 0 && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

/* Keys arrive without Enter and are not echoed; Ctrl-C and Ctrl-Z stay signals. */
static int top_screen_set_keys(void)
{
    struct termios t = saved.termios;

    t.c_lflag &= ~(tcflag_t) (ICANON | ECHO);
    t.c_cc[VMIN] = 0;
    t.c_cc[VTIME] = 0;
    return tcsetattr(STDIN_FILENO, TCSANOW, &t) < 0 ? -errno : 0;
}

int screen_enter(void)
{
    struct sigaction a = {.sa_handler = top_screen_on_signal};
    sigset_t mask;
    int r;

    if (tcgetattr(STDIN_FILENO, &saved.termios) < 0)
        return -errno;

    (void) sigemptyset(&mask);
    for (unsigned i = 0; i < N_SIGNALS; i++)
        (void) sigaddset(&mask, all_signals[i]);
    (void) sigprocmask(SIG_BLOCK, &mask, &saved.mask);
    for (unsigned i = 0; i < N_SIGNALS; i++)
        (void) sigaction(all_signals[i], &a, &saved.actions[i]);
    saved.entered = true;
    r = top_screen_set_keys();
    if (r == 0 && !top_screen_write_text("\033[?1049h\033[?25l\033[2J"))
        r = -EIO;
    if (r < 0)
        screen_leave();
    return r;
}

void screen_leave(void)
{
    if (!saved.entered)
        return;
    saved.entered = false;
    (void) top_screen_write_text("\033[?25h\033[?1049l");
    (void) tcsetattr(STDIN_FILENO, TCSANOW, &saved.termios);
    for (unsigned i = 0; i < N_SIGNALS; i++)
        (void) sigaction(all_signals[i], &saved.actions[i], NULL);
    (void) sigprocmask(SIG_SETMASK, &saved.mask, NULL);
}

void screen_size(unsigned *ret_width, unsigned *ret_height)
{
    struct winsize w = {0};

    (void) ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    *ret_width = w.ws_col > 0 ? w.ws_col : 80;
    *ret_height = w.ws_row > 0 ? w.ws_row : 24;
}

/* Erases the rest of each line and of the screen after drawing. The last line has no newline, so nothing
 * scrolls. */
bool screen_draw(const char *text)
{
    bool whole = top_screen_write_text("\033[H");

    while (*text && whole) {
        size_t n = strcspn(text, "\n");

        whole = top_screen_write_all(text, n) && top_screen_write_text("\033[K");
        text += n;
        if (*text == '\n' && *++text != '\0')
            whole = whole && top_screen_write_text("\r\n");
    }
    return whole && top_screen_write_text("\033[J");
}

/* Ctrl-Z: restores the terminal, stops the process, and takes the terminal again after SIGCONT. */
static void top_screen_suspend(void)
{
    screen_leave();
    (void) raise(SIGSTOP);
    (void) screen_enter();
}

static bool top_screen_got_quit_signal(void)
{
    for (unsigned i = 0; i < N_QUIT_SIGNALS; i++)
        if (received[quit_signals[i]])
            return true;
    return false;
}

/* SCREEN_TIMEOUT: no key. */
static enum screen_event top_screen_read_key(short events, char *ret_key)
{
    char keys[64];
    ssize_t n;

    if (!(events & POLLIN))
        return events & (POLLERR | POLLHUP | POLLNVAL) ? SCREEN_QUIT : SCREEN_TIMEOUT;
    n = read(STDIN_FILENO, keys, sizeof(keys));
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN) || (n > 0 && memchr(keys, 'q', (size_t) n)))
        return SCREEN_QUIT;
    if (n <= 0 || keys[0] == '\033') /* cursor keys and the like */
        return SCREEN_TIMEOUT;
    *ret_key = keys[n - 1];
    return SCREEN_KEY;
}

enum screen_event screen_wait(double seconds, char *ret_key)
{
    double until = clock_seconds() + seconds, left;

    while ((left = until - clock_seconds()) > 0) {
        struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
        struct timespec t = {.tv_sec = (time_t) left,
                             .tv_nsec = (long) ((left - (double) (time_t) left) * 1e9)};
        int n = ppoll(&p, 1, &t, &saved.mask);
        enum screen_event event = n > 0 ? top_screen_read_key(p.revents, ret_key) : SCREEN_TIMEOUT;

        if (top_screen_got_quit_signal() || (n < 0 && errno != EINTR))
            return SCREEN_QUIT;
        if (event != SCREEN_TIMEOUT)
            return event;
        if (received[SIGTSTP]) {
            received[SIGTSTP] = 0;
            top_screen_suspend();
            return SCREEN_RESIZED;
        }
        if (received[SIGWINCH]) {
            received[SIGWINCH] = 0;
            return SCREEN_RESIZED;
        }
    }
    return SCREEN_TIMEOUT;
}
