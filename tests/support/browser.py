"""A headless Chromium for tests of the server's page."""

import base64
import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support import expected_conditions
from selenium.webdriver.support.wait import WebDriverWait

# Seconds to wait for any condition.
_TIMEOUT = 60


def start():
    """Returns a browser.

    Raises:
      RuntimeError: If it is not installed.
    """
    paths = {}
    for program in ("chromium", "chromedriver"):
        paths[program] = shutil.which(program)
        if paths[program] is None:
            raise RuntimeError(
                f"There is no {program}. Install it: apt-get install "
                "--no-install-recommends chromium chromium-driver"
            )
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    for argument in (
        "--headless=new",
        "--no-sandbox",  # Chromium as root has no sandbox.
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--window-size=1200,900",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(
        options, webdriver.ChromeService(paths["chromedriver"])
    )
    return Browser(driver)


class Browser:
    """One browser window.

    Args:
      driver: Selenium's driver.
    """

    def __init__(self, driver):
        self._driver = driver

    def open(self, url):
        # Otherwise a new fragment of the same address would not reload.
        self._driver.get("about:blank")
        self._driver.get(url)

    def close(self):
        self._driver.quit()

    def find(self, selector):
        """Returns the first element of a selector when it is displayed."""
        return WebDriverWait(self._driver, _TIMEOUT).until(
            expected_conditions.visibility_of_element_located(
                (By.CSS_SELECTOR, selector)
            ),
            f"Nothing displayed is {selector}",
        )

    def all(self, selector):
        return self._driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [element.text for element in self.all(selector)]

    def wait(self, condition, message):
        """Waits until a function of no arguments returns something true."""
        return WebDriverWait(self._driver, _TIMEOUT).until(
            lambda _: condition(), message
        )

    def script(self, code, *arguments):
        return self._driver.execute_script(code, *arguments)

    def actions(self):
        return webdriver.ActionChains(self._driver)

    def errors(self):
        """Returns the console's messages since the last call."""
        return [entry["message"] for entry in self._driver.get_log("browser")]

    def use_dark(self, is_dark):
        value = "dark" if is_dark else "light"
        feature = {"name": "prefers-color-scheme", "value": value}
        self._driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [feature]}
        )

    def set_offline(self, is_offline):
        self._driver.set_network_conditions(
            offline=is_offline, latency=0, throughput=-1
        )

    def use_width(self, width, scale=2):
        """Sets the width of the page, as on a phone; None resets it."""
        if width is None:
            self._driver.execute_cdp_cmd(
                "Emulation.clearDeviceMetricsOverride", {}
            )
            return
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": width,
                "height": 800,
                "deviceScaleFactor": scale,
                "mobile": True,
            },
        )

    def screenshot(self, path):
        """Writes a picture of the whole page."""
        width, height = self.script(
            "const page = document.documentElement;"
            "return [page.clientWidth, page.scrollHeight];"
        )
        with open(path, "wb") as file:
            file.write(self.picture(width, height))

    def picture(self, width, height):
        """Returns the PNG of the top left part of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self._driver.execute_cdp_cmd(
            "Page.captureScreenshot",
            {"captureBeyondViewport": True, "clip": clip},
        )
        return base64.b64decode(answer["data"])
