// Ways to lose a test VM, and what brings it back: a driver for QEMU's i6300esb watchdog, which
// Debian's cloud kernel lacks (registers: Intel 6300ESB datasheet, section 16), and two parameters.
// hang=1: every CPU spins with interrupts off. take_mib=N: N MiB of pages that no cgroup counts, as
// a GPU's driver takes them on unified memory; take_mib=0 gives them back.
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/smp.h>
#include <linux/watchdog.h>

#define CONFIG 0x60
#define LOCK 0x68
#define ENABLE 0x02
#define NO_INTERRUPT 0x03
#define TIMER1 0x00
#define TIMER2 0x04
#define RELOAD 0x0c
#define ORDER 8

static void __iomem *base;
static struct pci_dev *card;
static LIST_HEAD(taken);

static void unlock(void)
{
	writew(0x80, base + RELOAD);
	writew(0x86, base + RELOAD);
}

static int ping(struct watchdog_device *dog)
{
	unlock();
	writew(0x100, base + RELOAD);
	return 0;
}

static int set_timeout(struct watchdog_device *dog, unsigned int seconds)
{
	// Two timers, one after the other, each in steps of about 1 ms: half of the time each.
	unlock();
	writel(seconds << 9, base + TIMER1);
	unlock();
	writel(seconds << 9, base + TIMER2);
	dog->timeout = seconds;
	return ping(dog);
}

static int start(struct watchdog_device *dog)
{
	set_timeout(dog, dog->timeout);
	pci_write_config_byte(card, LOCK, ENABLE);
	return 0;
}

static int stop(struct watchdog_device *dog)
{
	ping(dog);
	pci_write_config_byte(card, LOCK, 0);
	return 0;
}

static const struct watchdog_info info = {
	.options = WDIOF_SETTIMEOUT | WDIOF_KEEPALIVEPING | WDIOF_MAGICCLOSE,
	.identity = "i6300ESB timer",
};
static const struct watchdog_ops ops = {
	.owner = THIS_MODULE, .start = start, .stop = stop, .ping = ping, .set_timeout = set_timeout,
};
static struct watchdog_device dog = {
	.info = &info, .ops = &ops, .timeout = 30, .min_timeout = 1, .max_timeout = 2046,
};

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	int failed = pcim_enable_device(pci);

	if (!failed)
		failed = pcim_iomap_regions(pci, BIT(0), KBUILD_MODNAME);
	if (failed)
		return failed;
	card = pci;
	base = pcim_iomap_table(pci)[0];
	pci_write_config_word(pci, CONFIG, NO_INTERRUPT);
	pci_write_config_byte(pci, LOCK, 0);
	dog.parent = &pci->dev;
	return devm_watchdog_register_device(&pci->dev, &dog);
}

static void spin(void *unused)
{
	for (;;)
		cpu_relax();
}

static int set_hang(const char *value, const struct kernel_param *param)
{
	smp_call_function(spin, NULL, 0);
	local_irq_disable();
	spin(NULL);
	return 0;
}

static int set_take(const char *value, const struct kernel_param *param)
{
	struct page *page, *next;
	unsigned int mib, n;
	int failed = kstrtouint(value, 10, &mib);

	if (failed)
		return failed;
	list_for_each_entry_safe(page, next, &taken, lru) {
		list_del(&page->lru);
		__free_pages(page, ORDER);
	}
	for (n = 0; n < mib; n++) {
		page = alloc_pages(GFP_KERNEL | __GFP_NORETRY | __GFP_NOWARN, ORDER);
		if (!page)
			return -ENOMEM;
		list_add(&page->lru, &taken);
		msleep(5);
	}
	return 0;
}

static const struct kernel_param_ops hang_ops = { .set = set_hang };
static const struct kernel_param_ops take_ops = { .set = set_take };
module_param_cb(hang, &hang_ops, NULL, 0200);
module_param_cb(take_mib, &take_ops, NULL, 0200);

static const struct pci_device_id ids[] = { { PCI_DEVICE(0x8086, 0x25ab) }, {} };
MODULE_DEVICE_TABLE(pci, ids);
static struct pci_driver dog_driver = { .name = KBUILD_MODNAME, .id_table = ids, .probe = probe };
module_pci_driver(dog_driver);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("ways to lose a test VM, and its watchdog (rigbook's VM tests)");
