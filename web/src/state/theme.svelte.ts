/** Light or dark: by the system's setting, unless somebody chose otherwise on this page. */
class Theme {
  #system = matchMedia("(prefers-color-scheme: dark)");
  #chosen = false;
  dark = $state(false);

  constructor() {
    this.#show(this.#system.matches);
    this.#system.addEventListener("change", (event) => {
      if (!this.#chosen) this.#show(event.matches);
    });
  }
  toggle(): void {
    this.#chosen = true;
    this.#show(!this.dark);
  }
  #show(dark: boolean): void {
    this.dark = dark;
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
  }
}

export const theme = new Theme();
